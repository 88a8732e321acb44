"""Pages that are made from the code when the site is built: one for each method, and the list of decisions."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "fdamed/methods"


def catalog() -> dict[str, Any]:
    return dict(json.loads((SOURCE / "catalog.json").read_text()))


def about() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docs/methods/about.yaml").read_text()))


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    known, words = catalog(), about()
    for name in words:
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(name, known[name], words[name])))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    return files


def decisions() -> str:
    """The decision records by number."""
    records = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    titles = [(path.name, path.read_text().splitlines()[0].removeprefix("# ")) for path in records]
    told = "Choices made where the papers, or common practice, leave one."
    return "\n".join(["# Decisions", "", told, "", *(f"* [{title}]({name})" for name, title in titles)]) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The table of all methods, where a page asks for it; in tables a figure and its interval stay on one line."""
    lines = markdown.replace("<!-- table of methods -->", methods_table()).split("\n")
    return "\n".join(line.replace(" ± ", "\u00a0±\u00a0") if line.startswith("|") else line for line in lines)


def methods_table() -> str:
    known, words = catalog(), about()
    lines = ["| run | method | the target gives | x FedAvg | when |", "|---|---|---|---|---|"]
    for name, said in words.items():
        cost = f"{said['cost']:.2f}" if said.get("cost") else ""
        gives = said.get("gives") or ("few labels" if known[name]["target_labels"] else "nothing")
        lines.append(f"| [`{name}`]({name}.md) | {known[name]['title']} | {gives} | {cost} | {said['when']} |")
    return "\n".join(lines)


def method_page(name: str, facts: dict[str, Any], words: dict[str, Any]) -> str:
    """Whose it is, the box, what crosses the wire, when to use it, its options."""
    parts = [f"# {facts['title']} (`{name}`)", f"*{facts['paper']}*", words["when"]]
    place = facts["module"].replace(".", "/") + ".py"
    if not facts.get("classical"):
        docstring, box = read(ROOT / place)
        parts += [docstring, "## The box", f"From `{place}`, the server's program:", fenced(box)]
    if facts["wire"]:
        parts += ["## What crosses the wire", wire_table(facts["wire"])]
    if words.get("cost"):
        told = f"A round took {words['cost']:.2f} times the CPU seconds of FedAvg's"
        how = "`python -m benchmarks.methods --full --side 128 --images 64 --sgd`, two steps each, medians of three"
        parts += ["## Cost", f"{told} ({how})."]
    parts += ["## Options", options_table(facts["options"]) if facts["options"] else "None."]
    parts += ["## In a study", fenced(f"runs:\n  {name}: {{{example(facts['options'])}}}", "yaml")]
    return "\n\n".join(parts) + "\n"


def read(path: Path) -> tuple[str, str]:
    """A method's docstring, and the source of its `round`."""
    text = path.read_text()
    tree = ast.parse(text)
    rounds = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == "round"]
    box = textwrap.dedent(ast.get_source_segment(text, rounds[0], padded=True) or "")
    return ast.get_docstring(tree) or "", box


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def wire_table(wire: list[dict[str, Any]]) -> str:
    lines = ["| step | to a hospital | from a hospital |", "|---|---|---|"]
    for step in wire:
        down, up = (", ".join(f"{k}: {v}" for k, v in step[side].items()) for side in ("to_hospital", "from_hospital"))
        lines.append(f"| `{step['step']}` | {down} | {up} |")
    return "\n".join(lines) + "\n\nA hospital lets out only the kinds that `privacy.release` names."


def options_table(options: dict[str, Any]) -> str:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, o in options.items():
        choices = f" ({', '.join(f'`{c}`' for c in o['choices'])})" if o.get("choices") else ""
        lines.append(f"| `{name}` | `{json.dumps(o['default'])}` | {o['help']}{choices} |")
    return "\n".join(lines)


def example(options: dict[str, Any]) -> str:
    """The first option at its default, so that a reader sees where options go."""
    return next((f"{name}: {json.dumps(o['default'])}" for name, o in options.items()), "")
