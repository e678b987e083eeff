"""Picklable description of one load task: its portion, source, filters and parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

from snowmelt.load.copy_ast import InputCompression
from snowmelt.load.portion import Portion
from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    import datetime as dt

    from snowmelt.load.phase_protocols import HeaderMismatch, ParseTarget

StepKind: TypeAlias = Literal["source", "filter", "parser"]

_SECRET_WORDS = ("secret", "password", "token", "credential", "conf")
_URL_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One source, filter or parser by name, with its original parameters.

    `planned_values` is the result of planning the step on the driver.
    """

    kind: StepKind
    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    planned_values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return kind, name and parameters. Secrets are redacted and long values truncated."""
        shown = ", ".join(
            f"{name}={_display_parameter(name, value)}" for name, value in self.parameters.items()
        )
        return f"{self.kind} {self.name}({shown})"


def _display_parameter(name: str, value: object) -> str:
    if any(word in name.lower() for word in _SECRET_WORDS):
        return "…"
    text = str(value) if isinstance(value, Decimal) else _URL_CREDENTIALS.sub("//…@", repr(value))
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


@dataclass(frozen=True, slots=True)
class ComputedExpression:
    """A computed column's internal name, and its expression as written."""

    column: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """Plan that all portions of a load share.

    Attributes:
        target: Parsed columns.
        table: Columns of the resulting rows. A column that is neither parsed nor computed has its default.
        reject_limit: Number of rejects at which a task stops. None: no limit.
        rejects_failed_expressions: A record whose expression fails is rejected. Otherwise the load fails.
        started_at: Current time for expressions, timezone-aware. None: not available.
        partition_columns: Columns whose values are in the names of folders.
    """

    source: LoadStep
    filters: tuple[LoadStep, ...]
    parser: LoadStep
    target: ParseTarget
    table: TableSchema
    computed: tuple[ComputedExpression, ...] = ()
    reject_limit: int | None = None
    rejects_failed_expressions: bool = False
    started_at: dt.datetime | None = None
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One portion of a load. `number` is the portion's index in the load, from 0."""

    number: int
    portion: Portion
    plan: StackPlan
    compression: InputCompression | None = None

    @property
    def filters(self) -> tuple[LoadStep, ...]:
        """Filters in the order of execution, decompression first."""
        if self.compression is None:
            return self.plan.filters
        return (LoadStep("filter", self.compression.value), *self.plan.filters)


@dataclass(slots=True)
class PortionCounts:
    """Counters of one portion, complete after its run ends.

    Attributes:
        bytes_in: Bytes read from the file that belong to the portion.
        bytes_parsed: Bytes that the parser received.
        records: Number of rows plus rejects.
        truncated_values: Values that were cut to the length of their column.
        header_mismatch: Differences between the header of the file and the columns.
        reject_limit_reached: True if the run stopped at the limit of rejects. The load then fails.
    """

    bytes_in: int = 0
    bytes_parsed: int = 0
    records: int = 0
    rows: int = 0
    rejects: int = 0
    reject_limit_reached: bool = False
    truncated_values: int = 0
    header_mismatch: HeaderMismatch | None = None
