"""MkDocs hooks: pages and tables that are generated from the code when the site is built."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fdamed.cli.parser import commands
from fdamed.config.reference import LONG, allowed, code, example_of, examples, meaning, own_keys, sections_of

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "fdamed/methods"


MARK = r"<!-- table of (\w+) -->.*?<!-- end -->"


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
    """Fill in generated tables for the text that readers of the file see; keep a figure and its interval together."""
    markdown = re.sub(MARK, lambda found: TABLES[found[1]](), markdown)
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
    lines = ["| method | differential privacy at the sources | secure aggregation |", "|---|---|---|"]
    for name, facts in catalog().items():
        if not facts.get("classical"):
            sums = f"no: {facts['needs_each']}" if facts["needs_each"] else "yes"
            sums += "".join(f"; not with `{option}`: {why}" for option, why in facts["needs_each_with"].items())
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
    """The keys of a configuration by section, from its schema, with examples from the shipped configurations."""
    schema = json.loads((ROOT / "config/schema.json").read_text())
    known, found = schema["$defs"], examples(schema, ROOT / "config")
    plain = {name: entry for name, entry in schema["properties"].items() if not sections_of(entry)}
    out, shown = ["## Top level", "", keys_table(plain, found[""], schema["required"])], dict[str, str]()

    def add(path: str, entry: dict[str, Any]) -> None:
        """The sections that a key may hold, and those within; one that was shown before is only named."""
        for section in sections_of(entry):
            title = f"`{path}`" + (f" ({section})" if len(sections_of(entry)) > 1 else "")
            keys = own_keys(known[section]["properties"])
            text = f"The keys of {shown[section]}." if section in shown else known[section].get("description", "")
            out.extend(["", f"{'#' * min(path.count('.') + 2, 4)} {title}", "", text])
            if section not in shown:
                shown[section] = title
                out.extend(["", keys_table(keys, found[section], known[section].get("required", ()))])
                for key, inner in keys.items():
                    add(f"{path}.{key}", inner)

    for name, entry in schema["properties"].items():
        add(name, entry)
    return "\n".join(out)


def columns_table() -> str:
    """What a table's columns may contain, from the parsers."""
    from fdamed.data.datasets.table import REQUIRED
    from fdamed.data.manifest import COLUMNS
    from fdamed.data.vocabulary import ACCEPTED

    lines = ["| column | accepted values |", "|---|---|"]
    for name in (*(c for c in COLUMNS if c not in ("label", *REQUIRED)), "label"):
        lines.append(f"| {'each label' if name == 'label' else f'`{name}`'} | {ACCEPTED.get(name, 'any text')} |")
    return "\n".join(lines)


def keys_table(keys: dict[str, Any], found: dict[str, Any], required: Collection[str]) -> str:
    lines = ["| key | values | default | meaning | example |", "|---|---|---|---|---|"]
    for name, entry in keys.items():
        default = code(entry["default"]) if "default" in entry else "required" if name in required else "none"
        default = "see below" if len(default) > LONG else default
        cells = (f"`{name}`", allowed(entry), default, meaning(entry), example_of(name, entry, found))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "privacy": privacy_table,
    "commands": commands_table,
    "configuration": configuration_table,
    "columns": columns_table,
    "example": lambda: fenced((ROOT / "config/table.yaml").read_text(encoding="utf-8").strip(), "yaml"),
}
"""Name in `<!-- table of NAME -->` -> the table."""


def method_page(name: str, facts: dict[str, Any], notes: dict[str, Any]) -> str:
    """Paper, when to use it, server program, messages, cost, what it was validated on, options."""
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
    parts += ["## Validation", notes["validated"]]
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
