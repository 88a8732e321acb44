"""MkDocs hooks: pages and tables that are generated from the code when the site is built."""

from __future__ import annotations

import ast
import itertools
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fdamed.cli.parser import commands

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "fdamed/methods"
MANY = 10
"""Choices from which on a table does not list them."""


def catalog() -> dict[str, Any]:
    return dict(json.loads((SOURCE / "catalog.json").read_text()))


def about() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docs/methods/about.yaml").read_text()))


def on_config(config: Any) -> Any:
    """Add the pages of all methods to the navigation."""
    reference = next(section["Reference"] for section in config["nav"] if "Reference" in section)
    methods = next(section["Methods"] for section in reference if "Methods" in section)
    methods += [{name: f"methods/{name}.md"} for name in about()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each method, and the index of decisions."""
    from mkdocs.structure.files import File

    known, notes = catalog(), about()
    for name in notes:
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(name, known[name], notes[name])))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    return files


def decisions() -> str:
    """The decision records by number, with what supersedes them."""
    lines = ["# Decisions", "", "Choices that the papers or common practice leave open, and their reasons."]
    lines += ["Old records keep the words and file names of their time:"]
    lines += ["[decision 0042](0042-names-and-rooms.md) lists what was renamed. Some numbers are not used.", ""]
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        text = path.read_text()
        number, title = path.name[:4], text.splitlines()[0].removeprefix("# ").partition(" (")[0]
        note = re.search(r"^\*((?:Partly s|S)uperseded by \[\d{4}\]\([\w-]+\.md\))", text, re.MULTILINE)
        status = f" (*{note[1].lower()}*)" if note else ""
        lines.append(f"* [{number}]({path.name}) {title.removeprefix(number).lstrip(': ')}{status}")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in generated tables; keep a figure and its interval on one line of a table cell."""
    for name, table in TABLES.items():
        if (mark := f"<!-- table of {name} -->") in markdown:
            markdown = markdown.replace(mark, table())
    lines = markdown.split("\n")
    return "\n".join(line.replace(" ± ", "\u00a0±\u00a0") if line.startswith("|") else line for line in lines)


def methods_table() -> str:
    known = catalog()
    lines = ["| run | method | the target provides | x FedAvg | when |", "|---|---|---|---|---|"]
    for name, note in about().items():
        cost = f"{note['cost']:.2f}" if note.get("cost") else ""
        gives = note.get("gives") or ("few labels" if known[name]["target_labels"] else "nothing")
        lines.append(f"| [`{name}`]({name}.md) | {known[name]['title']} | {gives} | {cost} | {note['when']} |")
    return "\n".join(lines)


def privacy_table() -> str:
    """Which federated methods work with differential privacy and with secure aggregation."""
    lines = ["| method | differential privacy at the sources | secure aggregation is enough |", "|---|---|---|"]
    for name, facts in catalog().items():
        if not facts.get("classical"):
            sums = f"no: {facts['needs_each']}" if facts["needs_each"] else "yes"
            lines.append(f"| `{name}` | {'yes' if facts['noised'] else 'no'} | {sums} |")
    return "\n".join(lines)


def commands_table() -> str:
    """All commands by group, with their summary and first example."""
    out: list[str] = []
    for group in dict.fromkeys(command.group for command in commands().values()):
        out += [f"## {group[0].upper() + group[1:]}", "", "| command | what it does | example |", "|---|---|---|"]
        for name, command in commands().items():
            if command.group == group:
                out.append(f"| `{name}` | {command.summary} | `{command.examples[0]}` |")
        out.append("")
    return "\n".join(out)


def configuration_table() -> str:
    """The keys of a configuration by section, from its schema."""
    schema = json.loads((ROOT / "config/schema.json").read_text())
    known = schema["$defs"]
    plain = {name: entry for name, entry in schema["properties"].items() if not sections_of(entry)}
    out = ["## Top level", "", keys_table(plain)]
    for name, entry in schema["properties"].items():
        for section in sections_of(entry):
            found = known[section]
            which = f" ({section})" if len(sections_of(entry)) > 1 else ""
            own = own_keys(found["properties"])
            out += ["", f"## `{name}`{which}", "", found.get("description", ""), "", keys_table(own)]
            for key, inner in own.items():
                for part in sections_of(inner):
                    text, keys = known[part].get("description", ""), own_keys(known[part]["properties"])
                    out += ["", f"### `{name}.{key}`{which}", "", text, "", keys_table(keys)]
    return "\n".join(out)


def own_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of a section; a run's also include all options of all methods, which have their own pages."""
    if "method" not in keys:
        return keys
    options = {name for method in catalog().values() for name in method["options"]} - {"noise"}
    return {name: keys[name] for name in itertools.takewhile(lambda name: name not in options, keys)}


def sections_of(entry: dict[str, Any]) -> list[str]:
    """The names of the sections that a key may hold."""
    options = [entry, *entry.get("anyOf", ()), *entry.get("oneOf", ()), *entry.get("patternProperties", {}).values()]
    return [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]


def keys_table(keys: dict[str, Any]) -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, entry in keys.items():
        value = entry.get("const", entry.get("default", {}))
        default = "" if isinstance(value, dict) else f"`{json.dumps(value)}`"
        choices = ", ".join(f"`{choice}`" for choice in entry.get("enum", ()) if len(entry["enum"]) < MANY)
        text = " ".join(entry.get("description", "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {default} | {text}{f' ({choices})' if choices else ''} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "privacy": privacy_table,
    "commands": commands_table,
    "configuration": configuration_table,
}
"""Name in `<!-- table of NAME -->` -> the table."""


def method_page(name: str, facts: dict[str, Any], notes: dict[str, Any]) -> str:
    """Paper, when to use it, server program, messages, cost, options."""
    parts = [f"# {facts['title']} (`{name}`)", f"*{facts['paper']}*", notes["when"]]
    if not facts.get("classical"):
        path = source(facts["module"])
        docstring, program = read(path)
        parts += [docstring, "## Server program", f"From `{path.relative_to(ROOT)}`:", fenced(program)]
    if facts["wire"]:
        parts += ["## Messages", wire_table(facts["wire"])]
    if notes.get("cost"):
        how = "`python -m benchmarks.methods --full --side 128 --images 64 --sgd`, two steps each, median of three"
        parts += ["## Cost", f"A round took {notes['cost']:.2f} times the CPU seconds of FedAvg's ({how})."]
    parts += ["## Options", options_table(facts["options"]) if facts["options"] else "None."]
    given = [example(facts["options"])] if facts["options"] else []
    given += ["train: {source: {optimizer: sgd, lr: 0.01}}"] if facts.get("needs_sgd") is not None else []
    parts += ["## In a study", fenced(f"runs:\n  {name}: {{{', '.join(given)}}}", "yaml")]
    return "\n\n".join(parts) + "\n"


def source(module: str) -> Path:
    """The file of a method: a module, or the module of a package that defines `round`."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read(path: Path) -> tuple[str, str]:
    """A method's docstring, and the source of its `round`."""
    text = path.read_text()
    tree = ast.parse(text)
    rounds = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == "round"]
    program = textwrap.dedent(ast.get_source_segment(text, rounds[0], padded=True) or "")
    return ast.get_docstring(tree) or "", program


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def wire_table(wire: list[dict[str, Any]]) -> str:
    lines = ["| step | to a client | from a client |", "|---|---|---|"]
    for step in wire:
        down, up = (", ".join(f"{k}: {v}" for k, v in step[side].items()) for side in ("to_hospital", "from_hospital"))
        lines.append(f"| `{step['step']}` | {down} | {up} |")
    return "\n".join(lines) + "\n\nA client sends only the kinds that `privacy.release` names."


def options_table(options: dict[str, Any]) -> str:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, o in options.items():
        choices = f" ({', '.join(f'`{c}`' for c in o['choices'])})" if o.get("choices") else ""
        lines.append(f"| `{name}` | `{json.dumps(o['default'])}` | {o['help']}{choices} |")
    return "\n".join(lines)


def example(options: dict[str, Any]) -> str:
    """The first option at its default, to show where options go."""
    return next((f"{name}: {json.dumps(o['default'])}" for name, o in options.items()), "")
