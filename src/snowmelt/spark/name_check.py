"""Check of the table and function names of a query before Spark starts, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.external_functions import FunctionName, list_usable_functions
from snowmelt.catalog.objects.name_suggestions import raise_function_not_found, suggesting_names
from snowmelt.catalog.objects.namespaces import find_database
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.errors import DatabaseNotFound, UserError
from snowmelt.schema.types import TableName
from snowmelt.spark.functions.call_rewriter import find_calls, list_candidate_names
from snowmelt.spark.sql.cursor import FULL_NAME_PARTS
from snowmelt.spark.sql.system_views import is_history_view, is_information_schema_view
from snowmelt.spark.sql.table_references import parse_query


def check_full_names(database: Database, role: str, text: str) -> None:
    """Verify that tables and functions with full names in Snowmelt's databases exist.

    Shorter names, and names in other databases, may be Spark's: Spark resolves them.

    Raises:
        TableNotFound: If a table does not exist or the role lacks SELECT on it.
        NotFound: If a function does not exist or the role may not use it.
    """
    try:
        references, calls = parse_query(text).references, find_calls(text).calls
    except UserError:
        return  # `Snowmelt.sql` reports this error with its position.
    with database.reading() as connection:
        for reference in references:
            parts = reference.parts
            if (
                reference.is_certain
                and _is_in_catalog(connection, parts)
                and not is_history_view(parts)
                and not is_information_schema_view(parts)
            ):
                name = TableName(*parts)
                with suggesting_names(connection, role, name):
                    table = find_table(connection, name)
                    require_table_privilege(connection, role, table, "SELECT")
        for call in calls:
            if _is_in_catalog(connection, call.parts) and not any(
                list_usable_functions(connection, role, each.database, each.schema, each.function)
                for each, _ in list_candidate_names(call.parts, ())
            ):
                raise_function_not_found(connection, role, FunctionName(*call.parts))


def _is_in_catalog(connection: sa.Connection, parts: Sequence[str]) -> bool:
    if len(parts) != FULL_NAME_PARTS:
        return False
    try:
        find_database(connection, parts[0])
    except DatabaseNotFound:
        return False
    return True
