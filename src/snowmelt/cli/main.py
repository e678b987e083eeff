"""Entry point of the command `snowmelt`: runs subcommands and prints errors.

A subcommand is a module in `commands` with NAME, SUMMARY, EXAMPLES, `add_arguments(parser)` and
`run(options)`, which returns the exit code. Subcommands import slow modules only in `run`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import requires
from typing import Any, Protocol, TextIO, cast

import snowmelt
from snowmelt.cli.command_context import add_global_options
from snowmelt.errors import MissingExtra, SnowmeltError

_COMMANDS = (
    "init",
    "serve",
    "sql",
    "copy",
    "load",
    "kafka",
    "tail",
    "replay",
    "migrate",
    "maintain",
    "backups.backup",
    "backups.restore",
    "backups.replica",
    "select",
    "functions",
    "channels",
    "chunks",
    "metadata",
    "user",
    "cert",
    "settings",
    "status",
    "viewing.top",
    "viewing.console",
    "viewing.loads",
    "viewing.migrations",
    "doctor",
    "integrity.check",
    "integrity.trace",
    "upgrade",
    "warm",
    "demo",
    "completion",
)
_DESCRIPTION = (
    "Stream rows into Apache Iceberg tables, exactly once, and query them a second later."
)
_INTERRUPTED_EXIT_CODE = 130  # the exit code of shells for SIGINT
# The extra that a command needs. Commands not listed need `server`.
_EXTRAS_BY_COMMAND = {
    "copy": "load",
    "demo": "demo",
    "functions": "functions",
    "kafka": "kafka",
    "load": "load",
    "migrate": "spark",
    "select": "select",
    "warm": "select",
}
# Distributions of modules whose distribution has another name or is installed by another one.
_DISTRIBUTIONS_BY_MODULE = {
    "botocore": "boto3",
    "llvmlite": "numba",
    "opentelemetry": "opentelemetry-sdk",
    "py4j": "pyspark",
}


class Command(Protocol):
    """Interface of a subcommand module."""

    NAME: str
    SUMMARY: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        commands = [
            cast("Command", import_module(f"snowmelt.cli.commands.{name}")) for name in _COMMANDS
        ]
        return _run_command(_build_parser(commands).parse_args(arguments))
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE


def _run_command(options: argparse.Namespace) -> int:
    try:
        with warnings.catch_warnings():
            if not options.debug:
                warnings.showwarning = _print_warning
            return cast("Command", options.command).run(options)
    except BrokenPipeError:
        # The reader closed the pipe. Redirect the output, because Python would report the error at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        print(f"snowmelt: {_format_error(error, options.command)}", file=sys.stderr)
        return 1


def _format_error(error: Exception, command: Command) -> str:
    if isinstance(error, SnowmeltError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (
        (error.name or "").partition(".")[0] != "snowmelt"
    ):
        module = (error.name or "").partition(".")[0]
        extra = find_extra(module, command.NAME)
        return str(MissingExtra(what=f"`snowmelt {command.NAME}`", package=module, extra=extra))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}."
    first_line = str(error).partition("\n")[0]
    return f"Unexpected {type(error).__name__}: {first_line} (--debug shows where it came from)"


def find_extra(module: str, command: str) -> str:
    """Return the extra that installs a module: the command's extra if possible, else the smallest."""
    distribution = _DISTRIBUTIONS_BY_MODULE.get(module, module.replace("_", "-"))
    extras = list_extras()
    wanted = _EXTRAS_BY_COMMAND.get(command, "server")
    if distribution in extras.get(wanted, ()):
        return wanted
    bringing = [name for name in extras if distribution in extras[name]]
    return min(bringing, key=lambda name: len(extras[name]), default=wanted)


def list_extras() -> dict[str, set[str]]:
    """Return the distributions that each extra of the installed package includes."""
    extras: dict[str, set[str]] = {}
    included: dict[str, set[str]] = {}
    for requirement in requires("snowmelt") or ():
        found = re.match(r"([\w.-]+)(?:\[([^]]*)\])?.*extra == .(\w+)", requirement)
        if found:
            distribution, others, extra = found.groups()
            extras.setdefault(extra, set()).add(distribution)
            included.setdefault(extra, set()).update(re.findall(r"\w+", others or ""))
    for _ in extras:  # one pass per extra resolves every chain of included extras
        for extra, others in included.items():
            extras[extra].update(*(extras.get(other, ()) for other in others))
    return extras


class _SuggestingParser(argparse.ArgumentParser):
    """Argument parser that suggests corrections for a misspelled command, choice or option."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments. Exit with a message if one is unknown."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            inner = getattr(options, "command_parser", self)
            known = [text for each in (self, inner) for text in _list_option_strings(each)]
            hint = _format_suggestion(unknown[0], known)
            example = getattr(getattr(options, "command", None), "QUOTING_EXAMPLE", None)
            if example is not None and not unknown[0].startswith("-"):
                hint = f" Write the statement as one argument in quotes: {example}"
            inner.error(f"unknown argument {unknown[0]!r}.{hint}")
        return options

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        what = action.metavar if isinstance(action.metavar, str) else "value"
        suggestion = _format_suggestion(str(value), choices) or f" Valid: {', '.join(choices)}."
        raise argparse.ArgumentError(
            None if isinstance(action, _SUBPARSERS_ACTION) else action,
            f"unknown {what} {value!r}.{suggestion}",
        )


_SUBPARSERS_ACTION = argparse._SubParsersAction  # noqa: SLF001 - no public name


def _list_option_strings(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 - no public API
        yield from action.option_strings


def _format_suggestion(text: str, candidates: Iterable[str]) -> str:
    word = text.partition("=")[0].lower()
    close = difflib.get_close_matches(word, sorted(set(candidates)), n=3)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def _build_parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    parser = _SuggestingParser(prog="snowmelt", description=_DESCRIPTION)
    parser.add_argument(
        "-V", "--version", action="version", version=f"snowmelt {snowmelt.__version__}"
    )
    add_global_options(parser, is_top_level=True)
    subparsers = parser.add_subparsers(metavar="command", required=True)
    for command in commands:
        subparser = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            description=command.SUMMARY[:1].upper() + command.SUMMARY[1:] + ".",
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        add_global_options(subparser)
        subparser.set_defaults(command=command, command_parser=subparser, main_parser=parser)
    return parser


def _print_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - `warnings` passes it
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Print a warning as one line, without its source line."""
    print(f"snowmelt: warning: {message}", file=file or sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
