"""Generates the sections of `docs/reference/cli.md` from the command-line parsers."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from snowmelt.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands() -> argparse.ArgumentParser:
    """Return the parser of the command `snowmelt`."""
    modules = [import_module(f"snowmelt.cli.commands.{name}") for name in main._COMMANDS]
    return main._build_parser(modules)


def table() -> str:
    """Return a section for each command, in the order of `snowmelt --help`."""
    return "\n".join(_sections(commands()))


def _sections(parser: argparse.ArgumentParser) -> Iterator[str]:
    for command in _subparsers(parser).values():
        yield f"\n## snowmelt {command.prog.split()[-1]}\n"
        yield from _section(command)
        for inner in _subparsers(command).values():
            yield f"\n### snowmelt {inner.prog.partition(' ')[2]}\n"
            yield from _section(inner)


def _section(command: argparse.ArgumentParser) -> Iterator[str]:
    if command.description:
        yield f"{command.description}\n"
    usage = " ".join(command.format_usage().removeprefix("usage: ").split())
    yield f"```text\n{usage}\n```\n"
    rows = [_row(action) for action in command._actions if _is_own(action)]
    if rows:
        yield "| argument | meaning |\n| --- | --- |"
        yield from rows
    if command.epilog:
        yield from _examples(command.epilog)


def _examples(epilog: str) -> Iterator[str]:
    """Return the indented block after `examples:`, and the surrounding text."""
    title, _, rest = epilog.strip().partition("\n")
    if title != "examples:":
        return
    lines = rest.split("\n")
    count = next((n for n, line in enumerate(lines) if not line.startswith("  ")), len(lines))
    code = [line.removeprefix("  ") for line in lines[:count]]
    yield "\nExamples:\n\n```sh\n" + "\n".join(code) + "\n```"
    for paragraph in "\n".join(lines[count:]).strip().split("\n\n"):
        text = " ".join(paragraph.split())
        if text:
            yield "\n" + text.replace("<", "\\<").replace("*", "\\*")


def _is_own(action: argparse.Action) -> bool:
    shared = {"--data-dir", "--catalog", "--debug", "--help"}
    return not (
        isinstance(action, argparse._SubParsersAction)
        or shared.intersection(action.option_strings)
        or action.help == argparse.SUPPRESS
    )


def _row(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else " " + _metavar(action)
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
    meaning = argparse.HelpFormatter("")._expand_help(action) if action.help else ""
    meaning = " ".join(meaning.replace("|", "\\|").split())
    if action.choices and action.metavar:
        meaning += ": " + ", ".join(f"`{each}`" for each in action.choices)
    return f"| {names or f'`{_metavar(action)}`'} | {meaning} |"


def _metavar(action: argparse.Action) -> str:
    if action.metavar:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
