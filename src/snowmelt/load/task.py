"""Picklable description of one load task: its portion and its source, filters and parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from snowmelt.load.copy_ast import InputCompression
from snowmelt.load.portion import Portion
from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.load.phase_protocols import ParseTarget

StepKind: TypeAlias = Literal["source", "filter", "parser"]

_SECRET_WORDS = ("secret", "password", "token", "credential", "conf")
_URL_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One source, filter or parser by name, with parameters as they were given.

    `planned_values` is what the step's own planning on the driver left for its tasks.
    """

    kind: StepKind
    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    planned_values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Show kind, name and parameters; what may be secret is not shown, long values are cut."""
        shown = ", ".join(
            f"{name}={_display_parameter(name, value)}" for name, value in self.parameters.items()
        )
        return f"{self.kind} {self.name}({shown})"


def _display_parameter(name: str, value: object) -> str:
    if any(word in name.lower() for word in _SECRET_WORDS):
        return "…"
    text = _URL_CREDENTIALS.sub("//…@", repr(value))
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


@dataclass(frozen=True, slots=True)
class ComputedExpression:
    """A column of the table, by internal name, with its expression as it was written."""

    column: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """What is the same for all portions of a load.

    `target` holds the parsed columns; `table` the columns that rows come out with, where those
    that are neither parsed nor computed are NULL. `skip` records at the beginning of each file
    are the parser's business and are here for row numbers only. A task stops at `reject_limit`
    rejects. `started_at`, aware, is what expressions see as now.
    """

    source: LoadStep
    filters: tuple[LoadStep, ...]
    parser: LoadStep
    target: ParseTarget
    table: TableSchema
    computed: tuple[ComputedExpression, ...] = ()
    reject_limit: int | None = None
    started_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One portion of a load. `number` counts portions of the load from 0."""

    number: int
    portion: Portion
    plan: StackPlan
    compression: InputCompression | None = None

    @property
    def filters(self) -> tuple[LoadStep, ...]:
        """The filters in the order they run, decompression first."""
        if self.compression is None:
            return self.plan.filters
        return (LoadStep("filter", self.compression.value), *self.plan.filters)


@dataclass(slots=True)
class PortionCounts:
    """What went through one portion, complete once it has been run to the end.

    `bytes_in` counts bytes of the file that belong to the portion and were read, `bytes_parsed`
    what the parser was given; `records == rows + rejects`. `reject_limit_reached` tells that the run stopped
    because the limit of rejects was reached: the load is to fail.
    """

    bytes_in: int = 0
    bytes_parsed: int = 0
    records: int = 0
    rows: int = 0
    rejects: int = 0
    reject_limit_reached: bool = False
