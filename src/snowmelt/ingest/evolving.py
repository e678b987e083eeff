"""A client asks for columns that its rows have and the table lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.access import effective_role
from snowmelt.catalog.evolving import evolve_table, new_column
from snowmelt.catalog.tables import name_now
from snowmelt.errors import RequestMalformed
from snowmelt.schema.types import TableName, display_name, internal_name
from snowmelt.wire import columns
from snowmelt.wire.evolution import EvolveResponse

if TYPE_CHECKING:
    from snowmelt.catalog.database import Database
    from snowmelt.clock import Clock
    from snowmelt.wire.evolution import EvolveRequest


def evolve(database: Database, clock: Clock, request: EvolveRequest, user: str) -> EvolveResponse:
    """Add columns to a table and take NOT NULL off, as far as that is still to be done.

    Raises:
        RequestMalformed: The table is not named, or a column has no name.
        RoleNotGranted: The role is not the user's.
        StatementError: A type is none.
        TableNotFound: There is no such table, or the role may not use it.
        PrivilegeMissing: The role may not evolve it.
        EvolutionRefused: The table is not set to evolve, or too many columns come at once.
    """
    if not (request.database and request.schema and request.table):
        raise RequestMalformed(reason="database, schema and table must be named")
    parts = (internal_name(part) for part in (request.database, request.schema, request.table))
    wanted = [new_column(_column(each.name), each.type) for each in request.columns]
    with database.writing() as connection:
        role = internal_name(request.role) if request.role else None
        done = evolve_table(
            connection,
            name_now(connection, TableName(*parts), request.encryption_key_id, user),
            new_columns=wanted,
            no_longer_required=[_column(name) for name in request.drop_not_null],
            role=effective_role(connection, user, role),
            now=clock.now(),
        )
    return EvolveResponse(
        status_code=0,
        message="Success",
        schema_version=done.table.schema.version,
        table_columns=[columns.to_wire(column) for column in done.table.schema.columns],
        added=[display_name(name) for name in done.added],
        dropped_not_null=[display_name(name) for name in done.lifted],
    )


def _column(text: str) -> str:
    name = internal_name(text) if text else ""
    if not name or "\0" in name:
        raise RequestMalformed(reason=f"{text!r} is no name of a column")
    return name
