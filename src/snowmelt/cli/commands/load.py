"""`snowmelt load`: check that a user's filter does not depend on how its input is split."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.output import format_count
from snowmelt.errors import UserError
from snowmelt.load.phase_definition import PhaseDefinition

if TYPE_CHECKING:
    from snowmelt.load.filter_tester import FilterReport
    from snowmelt.load.library import Library

NAME = "load"
SUMMARY = "test a user-defined filter before COPY uses it"
EXAMPLES = """examples:
  snowmelt load check filters.py
  snowmelt load check filters.py --factory JsonFactory --input events.json
  snowmelt load check filters.py --factory Replace -p pattern=a -p replace_with=b

COPY passes the input of a filter in blocks of any size, and may use a filter for several files.
The check splits inputs in many ways, with new and with reused filter objects, and reports where
the output differs. The exit code is 1 if it does.
"""

_MAX_SHOWN_DIFFERENCES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    check = actions.add_parser(
        "check", help="test that the output of a filter does not depend on how its input is split"
    )
    check.add_argument(
        "file", type=Path, help="Python file; other files in its folder are its library"
    )
    check.add_argument("--factory", metavar="NAME",
                       help="factory, class or function (default: the only one in the file)")  # fmt: skip
    check.add_argument("--input", metavar="FILE", type=Path, action="append", default=[],
                       help="input file, repeatable (default: samples)")  # fmt: skip
    check.add_argument("-p", dest="parameters", metavar="NAME=VALUE", action="append", default=[],
                       help="parameter of the filter")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the check and print its findings."""
    from snowmelt.load.filter_tester import SAMPLE_INPUTS
    from snowmelt.load.udx.shared_progress_page import UserCodeLimits
    from snowmelt.load.udx.worker_process import run_isolated

    inputs = {str(path): path.read_bytes() for path in options.input} or dict(SAMPLE_INPUTS)
    name, reports = run_isolated(
        _check_filter_inputs,
        options.file,
        options.factory,
        options.parameters,
        inputs,
        limits=UserCodeLimits.from_settings(load_settings(options)),
    )
    changed, answered = False, False
    for title, report in reports:
        changed |= bool(report.differences)
        answered |= report.error is None
        print(f"{title}: {format_count(report.runs, 'run')}, {report.output_bytes:,} bytes")
        if report.error is not None:
            print(f"  rejected: {report.error}")
        for difference in report.differences[:_MAX_SHOWN_DIFFERENCES]:
            print(f"  {difference}")
        if len(report.differences) > _MAX_SHOWN_DIFFERENCES:
            print(f"  … and {len(report.differences) - _MAX_SHOWN_DIFFERENCES} more")
    if not (changed or answered):
        print(f"{name}: it rejects all inputs, so its output could not be compared.")
        return 1
    print(f"{name}: the output {'DIFFERS' if changed else 'is always the same'}.")
    return int(changed)


def _check_filter_inputs(
    file: Path, factory: str | None, parameters: Sequence[str], inputs: Mapping[str, bytes]
) -> tuple[str, list[tuple[str, FilterReport]]]:
    """Check a filter with each input. Runs in the process for user code."""
    from snowmelt.load.filter_tester import check_filter_with_chunkings
    from snowmelt.load.library import load_library
    from snowmelt.load.udx import shared_progress_page

    with shared_progress_page.running_step(f"{file.name}, {factory or 'its filter'}"):
        library = load_library(file.stem, _read_library_files(file))
        name = factory or _find_only_filter(library)
        definition = library.filter(name)
        given = _parse_parameters(definition, parameters)
        return name, [
            (title, check_filter_with_chunkings(definition, given, data))
            for title, data in inputs.items()
        ]


def _read_library_files(path: Path) -> dict[str, bytes]:
    beside = sorted(each for each in path.parent.glob("*.py") if each != path)
    return {each.name: each.read_bytes() for each in (path, *beside)}


def _find_only_filter(library: Library) -> str:
    """Return the name of the only filter in the file. A factory is preferred to its filter.

    Raises:
        UserError: If the file has no filter or several.
    """
    found = library.get_defined_objects()
    for method in ("prepare", "process", "run"):
        names = [name for name, value in found.items() if callable(getattr(value, method, None))]
        if names:
            break
    else:
        names = [name for name in found if not name.startswith("_")]
    if len(names) != 1:
        listed = ", ".join(names) or "nothing"
        raise UserError(f"{library.name} has {listed}. Specify one with --factory.")
    return names[0]


def _parse_parameters(definition: PhaseDefinition[Any], given: Sequence[str]) -> dict[str, object]:
    kinds = {parameter.name.lower(): parameter.kind for parameter in definition.parameters}
    values: dict[str, object] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise UserError(f"Invalid -p {each!r}. Expected name=value.")
        values[name] = _parse_parameter_value(name, text, kinds.get(name.lower(), str))
    return values


def _parse_parameter_value(name: str, text: str, kind: type) -> object:
    try:
        if kind is dt.timedelta:
            return dt.timedelta(seconds=float(text))
        return kind(text) if kind in {int, float} else text
    except ValueError:
        raise UserError(
            f"Invalid -p {name}={text!r}: expected a value of type {kind.__name__}."
        ) from None
