"""The catalog's SQL: one statement, one transaction, one result.

Queries are not for here: `is_query` tells them, and Spark runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from snowmelt.catalog.commands import (
    functions,  # noqa: F401 - they join `change`  # noqa: F401 - they join `change`  # noqa: F401 - they join `change`
    objects,  # noqa: F401 - they join `change`  # noqa: F401 - they join `change`
    pipes,  # noqa: F401 - they join `change`  # noqa: F401 - they join `change`
    security,  # noqa: F401 - they join `change`
    tables,  # noqa: F401 - they join `change`
)
from snowmelt.catalog.commands.ddl import change
from snowmelt.catalog.commands.session import Result, Session
from snowmelt.catalog.commands.show import show
from snowmelt.catalog.model.privileges import ACCOUNTADMIN
from snowmelt.catalog.security.access_control import effective_role, roles
from snowmelt.catalog.sql.ast import (
    Describe,
    DescribeAnyIntegration,
    DescribeFunction,
    DescribeIntegration,
    DescribeSecurityIntegration,
    Show,
    ShowFutureGrants,
    ShowGrants,
)
from snowmelt.catalog.sql.parser import is_query, parse
from snowmelt.catalog.sql.pipe_ast import DescribePipe
from snowmelt.clock import SystemClock
from snowmelt.errors import NotFound, TransactionConflict
from snowmelt.schema.types import display_name, internal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from snowmelt.catalog.db.database import Database
    from snowmelt.clock import Clock

__all__ = ["Result", "execute", "is_query"]

_ATTEMPTS = 3
_LOOKS = (
    Describe
    | DescribeAnyIntegration
    | DescribeFunction
    | DescribeIntegration
    | DescribePipe
    | DescribeSecurityIntegration
    | Show
    | ShowFutureGrants
    | ShowGrants
)


def execute(  # noqa: PLR0913 - who asks, in which place, at what time: six words, each with a default
    database: Database,
    text: str,
    *,
    user: str | None = None,
    role: str | None = None,
    default_database: str | None = None,
    default_schema: str | None = None,
    clock: Clock | None = None,
) -> Result:
    """Run one statement that is no query; a semicolon at its end is allowed.

    Args:
        database: The catalog.
        text: The statement, in Snowflake's words.
        user: Internal name of the user who asks; None is whoever may open the catalog itself.
        role: Internal name of the role. Without one a user has the default role (or PUBLIC),
            the opener of the catalog ACCOUNTADMIN.
        default_database: Where names of one or two parts are; written as in SQL.
        default_schema: Where names of one part are; PUBLIC if not given.
        clock: Dates what is created; the machine's clock when not given.

    Raises:
        StatementError: It cannot be understood, or asks for what is not supported.
        RoleNotGranted: The user does not have this role.
        PrivilegeMissing: The role may not do this.
        UserError: Something it needs is missing, or is there already.
    """
    statement = parse(text)
    looks_only = isinstance(statement, _LOOKS)
    now = (clock or SystemClock()).now()

    def run(connection: sa.Connection) -> Result:
        session = Session(
            connection=connection,
            user=user,
            role=_role(connection, user, role),
            database=None if default_database is None else internal_name(default_database),
            schema=None if default_schema is None else internal_name(default_schema),
            now=now,
        )
        return show(statement, session) if looks_only else change(statement, session)

    if looks_only:
        with database.reading() as connection:
            return run(connection)
    return _written(database, run)


def _written(database: Database, run: Callable[[sa.Connection], Result]) -> Result:
    """Run in a writing transaction, again when two met or both created the same name."""
    attempt = 0
    while True:
        attempt += 1
        try:
            with database.writing() as connection:
                return run(connection)
        except (TransactionConflict, IntegrityError):
            if attempt == _ATTEMPTS:
                raise


def _role(connection: sa.Connection, user: str | None, role: str | None) -> str:
    if user is not None:
        return effective_role(connection, user, role)
    if role is not None and role not in roles(connection):
        raise NotFound(kind="Role", name=display_name(role))
    return role or ACCOUNTADMIN
