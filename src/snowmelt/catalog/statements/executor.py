"""Execution of one catalog statement: one transaction, one result.

Does not run queries. `is_query` recognizes them, and Spark runs them.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN
from snowmelt.catalog.security.access_control import list_roles, resolve_effective_role
from snowmelt.catalog.sql.lexer import is_query
from snowmelt.catalog.statements.parser import parse_statement
from snowmelt.catalog.statements.statement_context import (
    NothingDone,
    StatementResult,
    StatementSession,
)
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import NotFound, TransactionConflict
from snowmelt.schema.types import to_display_name, to_internal_name

__all__ = ["StatementResult", "execute_statement", "is_query"]

_MAX_ATTEMPTS = 3


def execute_statement(
    database: Database,
    text: str,
    *,
    user: str | None = None,
    role: str | None = None,
    default_database: str | None = None,
    default_schema: str | None = None,
    clock: Clock | None = None,
) -> StatementResult:
    """Run one statement that is no query; a semicolon at its end is allowed.

    `user` and `role` are internal names; a user of None is whoever may open the catalog itself.
    Without a role a user has the default role (or PUBLIC), the opener of the catalog ACCOUNTADMIN.
    Names of one or two parts are in `default_database`, those of one part in `default_schema`
    (PUBLIC if not given), which are written as in SQL. `clock` dates what is created.

    Raises:
        StatementError: It cannot be understood, or asks for what is not supported.
        RoleNotGranted: The user does not have this role.
        PrivilegeMissing: The role may not do this.
        UserError: Something it needs is missing, or is there already.
    """
    statement = parse_statement(text)
    now = (clock or SystemClock()).now()

    def run(connection: sa.Connection) -> StatementResult:
        session = StatementSession(
            connection=connection,
            user=user,
            role=_resolve_role(connection, user, role),
            database=None if default_database is None else to_internal_name(default_database),
            schema=None if default_schema is None else to_internal_name(default_schema),
            now=now,
        )
        try:
            return statement.execute(session)
        except NothingDone as done:
            return StatementResult(message=str(done))

    if statement.reads_only:
        with database.reading() as connection:
            return run(connection)
    # Again when two met or both created the same name.
    attempt = 0
    while True:
        attempt += 1
        try:
            with database.writing() as connection:
                return run(connection)
        except (TransactionConflict, IntegrityError):
            if attempt == _MAX_ATTEMPTS:
                raise


def _resolve_role(connection: sa.Connection, user: str | None, role: str | None) -> str:
    if user is not None:
        return resolve_effective_role(connection, user, role)
    if role is not None and role not in list_roles(connection):
        raise NotFound(kind="Role", name=to_display_name(role))
    return role or ACCOUNTADMIN
