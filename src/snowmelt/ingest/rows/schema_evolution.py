"""Schema evolution: add columns to tables that their rows need."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.renames_and_evolution import evolve_table, make_column
from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.clock import Clock
from snowmelt.errors import PrivilegeMissing, UserError
from snowmelt.schema.inference import find_unfilled_columns, infer_new_columns
from snowmelt.schema.types import TableSchema, to_internal_name

if TYPE_CHECKING:
    from snowmelt.ingest.rows.targets import PipeTarget, RowSender
    from snowmelt.schema.conversion.row_converter import RowError

_log = logging.getLogger("snowmelt.ingest")
# Time in seconds for which a missing privilege to evolve a table is cached.
_DENIAL_CACHE_TTL_S = 10.0
_MAX_CACHED_DENIALS = 1_000


@dataclass(frozen=True, slots=True)
class MissingColumns:
    """Columns (name and type) that a table lacks for some rows, and NOT NULL constraints to drop."""

    columns: Mapping[str, str]
    nullable_columns: Sequence[str]


def infer_missing_columns(errors: Sequence[RowError], schema: TableSchema) -> MissingColumns | None:
    """Return the columns that rejected rows need, or None if evolution cannot help."""
    if not any(each.lacks_columns for each in errors):
        return None
    rows = [each.row for each in errors if isinstance(each.row, dict)]
    columns = infer_new_columns(rows, schema)
    free = find_unfilled_columns(rows, schema)
    return MissingColumns(columns, free) if columns or free else None


@dataclass(eq=False, slots=True)
class TableEvolver:
    """Evolves tables on behalf of roles with the privilege. Thread-safe."""

    _database: Database
    _clock: Clock
    _cached_denials: dict[tuple[int, RowSender], tuple[float, str]] = field(default_factory=dict)

    def evolve(self, target: PipeTarget, missing_columns: MissingColumns) -> str | None:
        """Add missing columns to a table. Return None, or the reason why they cannot be added.

        Raises:
            CatalogUnavailable: If the outcome is unknown. The request may be repeated.
        """
        key = (target.table.table_id, target.sender)
        now = self._clock.monotonic()
        until, reason = self._cached_denials.get(key, (0.0, ""))
        if now < until:
            return reason
        role = to_internal_name(target.sender.role) if target.sender.role else None
        try:
            columns = [make_column(name, kind) for name, kind in missing_columns.columns.items()]
            with self._database.writing() as connection:
                done = evolve_table(
                    connection,
                    target.table.name,
                    new_columns=columns,
                    no_longer_required=missing_columns.nullable_columns,
                    role=resolve_effective_role(connection, target.sender.user, role),
                    now=self._clock.now(),
                )
        except UserError as error:
            if isinstance(error, PrivilegeMissing):
                if len(self._cached_denials) >= _MAX_CACHED_DENIALS:
                    self._cached_denials.clear()
                self._cached_denials[key] = (now + _DENIAL_CACHE_TTL_S, str(error))
            return str(error)
        if done.added_columns or done.relaxed_columns:
            _log.info(
                "table %s follows its rows: columns %s added, NOT NULL taken off %s",
                *(
                    target.table.name,
                    ", ".join(done.added_columns),
                    ", ".join(done.relaxed_columns),
                ),
            )
        return None
