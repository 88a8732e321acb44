"""The commands of the documentation: in shell blocks, after `$` in transcripts, and in sentences."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from fdamed.cli.parser import commands as fdamed_commands

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELLS = {"sh", "bash", "console"}
SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)*)`(?!`)")
PROGRAMS = {"fdamed", "snakemake", "make", "python", "pytest", "pip", "mlflow", "eval"}
WITHOUT_OPTIONS = {"fdamed methods", "fdamed schema"}
"""Complete commands of two words; `fdamed advise` in a sentence is only a name."""
PLACEHOLDER = re.compile(r"[A-Z_]+|\[.*|.*\]|\.\.\.")
"""A word that makes a command a template: FOLDER, C, [--seed S]."""
HELP = "fdamed COMMAND --help"
REFUSED = {"fdamed predict --modle edema_model image.dcm": 2}
"""Commands that a page shows as mistakes -> their exit code."""


def commands() -> list[tuple[str, str]]:
    """(page, line) of every command, in the order of the page; the examples of the help texts come last.

    Decision records are history: their commands may be gone.
    """
    out = []
    for page in (page for page in PAGES if page.parent.name != "decisions"):
        out += [(str(page.relative_to(ROOT)), line) for line in of_text(page.read_text(encoding="utf-8"))]
    return out + [(HELP, line) for command in fdamed_commands().values() for line in command.examples]


def of_text(text: str) -> list[str]:
    """The commands of one page, without comments and prompts."""
    found: list[tuple[int, str]] = []
    for block in FENCED.finditer(text):
        lines = block[2].replace("\\\n", " ").splitlines()
        if block[1] not in SHELLS:
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found += [(block.start(), plain(line)) for line in lines]
    sentences = FENCED.sub(lambda block: " " * len(block[0]), text)
    found += [(span.start(), plain(span[1])) for span in SPAN.finditer(sentences) if is_command(plain(span[1]))]
    return [line for _, line in sorted(found, key=lambda at: at[0]) if line]


def plain(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", line.removeprefix("$ ").replace("\n", " ")).strip()


def is_command(span: str) -> bool:
    """Whether code in a sentence is a complete command: neither only its name nor a template with placeholders."""
    words = span.split()
    program = words[0]
    if program not in PROGRAMS and not program.startswith(".ci/"):
        return False
    if any(PLACEHOLDER.fullmatch(word) for word in words):
        return False
    if program == "fdamed" and len(words) == 2:
        return span in WITHOUT_OPTIONS or words[1].startswith("-")
    return len(words) > 1


def words_of(line: str) -> list[str]:
    """The words of a line's first program."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    cut = [i for i, w in enumerate(words) if w in ("&&", "|", ">", "2>", ";")]
    return words[: cut[0]] if cut else words


def values(words: list[str], option: str) -> list[str]:
    """The values of an option that takes several."""
    if option not in words:
        return []
    rest = words[words.index(option) + 1 :]
    end = next((i for i, w in enumerate(rest) if w.startswith("-")), len(rest))
    return rest[:end]
