"""The made part of docs/reference/errors.md: the public error tree."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import snowmelt
from snowmelt.errors import (
    ConflictError,
    InternalError,
    RemoteError,
    SnowmeltError,
    UnknownOutcome,
    UserError,
)

_BRANCHES = {
    UserError: ("Errors of the request", "Correct the request, and send it again."),
    ConflictError: ("Conflicts", "Another client changed the object first. Read its state before you continue."),
    RemoteError: ("Errors of other systems", "Retry with backoff where the table says so."),
    UnknownOutcome: ("Unknown outcome", "Check whether the change took effect before you repeat it."),
    InternalError: ("Internal errors", "A defect of Snowmelt. Report it with the log."),
}  # fmt: skip
_MODULES = ("snowmelt.errors", "snowmelt.functions.errors", "snowmelt.select.errors")


def list_errors(base: type[SnowmeltError]) -> Iterator[type[SnowmeltError]]:
    """Return the classes below one, depth first, that modules of errors define."""
    for each in sorted(base.__subclasses__(), key=lambda found: found.__name__):
        if each.__module__ in _MODULES:
            yield each
        yield from list_errors(each)


def table() -> str:
    """Return the made part of the page."""
    for name in _MODULES:
        importlib.import_module(name)
    parts: list[str] = []
    for branch, (heading, remedy) in _BRANCHES.items():
        parts += [
            f"## {heading}",
            "",
            f"Class `{branch.__name__}`, code `{branch.code}`. {remedy}",
            "",
        ]
        found = list(dict.fromkeys(list_errors(branch)))
        if not found:
            parts += [f"HTTP status {branch.status}.", ""]
            continue
        parts += [
            "| Code | HTTP status | Retry | Class | Message |",
            "| --- | --- | --- | --- | --- |",
        ]
        for each in found:
            message = " ".join((each.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")
            retry = "yes" if each.retryable else "no"
            parts.append(
                f"| `{each.code}` | {each.status} | {retry} | `{each.__name__}` | {message} |"
            )
        parts.append("")
    return "\n".join(parts)


def modules_with_errors() -> set[str]:
    """Return the modules of the package whose name is `errors`."""
    found = pkgutil.walk_packages(snowmelt.__path__, "snowmelt.")
    return {each.name for each in found if each.name.endswith(".errors")}
