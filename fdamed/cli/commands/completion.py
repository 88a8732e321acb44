"""Print the shell code that completes commands and options.

Examples:
    eval "$(fdamed completion bash)"
    fdamed completion fish > ~/.config/fish/completions/fdamed.fish
"""

from __future__ import annotations

import argparse

import argcomplete

GROUP = "maintain", 1
OPTIONS = {"shell": {"choices": ("bash", "zsh", "fish"), "help": "the shell"}}


def run(arguments: argparse.Namespace) -> None:
    print(argcomplete.shellcode(["fdamed"], shell=arguments.shell), end="")
