"""All that a query needs from the catalog to call an external function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.objects.external_functions import (
    FunctionName,
    FunctionRecord,
    find_function,
    find_translator,
)
from snowmelt.catalog.objects.integrations import find_integration
from snowmelt.catalog.sql.cursor import Cursor
from snowmelt.errors import NotFound
from snowmelt.functions.errors import IntegrationDisabled
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import sqlalchemy as sa

    from snowmelt.functions.definition import ApiIntegration, ExternalFunction, Translator


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function with its integration, which is enabled, and its translators."""

    name: FunctionName
    function: ExternalFunction
    integration: ApiIntegration
    request_translator: Translator | None
    response_translator: Translator | None


def callable_functions(
    connection: sa.Connection, role: str, name: FunctionName
) -> list[CallableFunction]:
    """Return the overloads of a name as a role may call them, by number of arguments.

    Raises:
        NotFound: There is none that the role may use, or something that it needs is gone.
        IntegrationDisabled: Its integration lets no calls through.
    """
    found = find_function(connection, role, name.database, name.schema, name.function)
    if not found:
        raise NotFound(
            f"Function {name} does not exist, or this role may not use it.",
            kind="Function",
            name=str(name),
        )
    return [_callable(connection, each) for each in found]


def callable_function(
    connection: sa.Connection, role: str, name: FunctionName, arguments: int
) -> CallableFunction:
    """Return the function that a call with so many arguments means.

    Raises:
        NotFound: There is none that the role may use, none takes so many arguments, or something
            that it needs is gone.
        IntegrationDisabled: Its integration lets no calls through.
    """
    found = find_function(connection, role, name.database, name.schema, name.function)
    for each in found:
        if each.takes_count(arguments):
            return _callable(connection, each)
    there = ", ".join(each.shown for each in found)
    raise NotFound(
        f"No function {name} takes {arguments} arguments; there is {there}."
        if found
        else f"Function {name} does not exist, or this role may not use it.",
        kind="Function",
        name=str(name),
    )


def _callable(connection: sa.Connection, record: FunctionRecord) -> CallableFunction:
    function = record.function
    integration = find_integration(connection, function.integration).integration
    if not integration.enabled:
        raise IntegrationDisabled(integration=display_name(integration.name))
    return CallableFunction(
        name=record.name,
        function=function,
        integration=integration,
        request_translator=_translator(connection, function.request_translator),
        response_translator=_translator(connection, function.response_translator),
    )


def _translator(connection: sa.Connection, name: str | None) -> Translator | None:
    if name is None:
        return None
    parts = Cursor(name).name("a translator", 3).parts
    return find_translator(connection, FunctionName(*parts)).translator
