"""External functions with integration and translators, as a query needs them to make calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.objects.api_integrations import find_api_integration
from snowmelt.catalog.objects.external_functions import (
    ExternalFunctionRecord,
    FunctionName,
    find_translator,
    list_usable_functions,
)
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.errors import NotFound
from snowmelt.functions.errors import IntegrationDisabled
from snowmelt.schema.types import to_display_name

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


def list_callable_functions(
    connection: sa.Connection, role: str, name: FunctionName
) -> list[CallableFunction]:
    """Return the overloads of a name as a role may call them, by number of arguments.

    Raises:
        NotFound: There is none that the role may use, or something that it needs is gone.
        IntegrationDisabled: Its integration lets no calls through.
    """
    found = list_usable_functions(connection, role, name.database, name.schema, name.function)
    if not found:
        raise NotFound(
            f"Function {name} does not exist, or this role may not use it.",
            kind="Function",
            name=str(name),
        )
    return [_to_callable_function(connection, each) for each in found]


def find_callable_function(
    connection: sa.Connection, role: str, name: FunctionName, argument_count: int
) -> CallableFunction:
    """Return the function that a call with so many arguments means.

    Raises:
        NotFound: There is none that the role may use, none takes so many arguments, or something
            that it needs is gone.
        IntegrationDisabled: Its integration lets no calls through.
    """
    found = list_usable_functions(connection, role, name.database, name.schema, name.function)
    for each in found:
        if each.accepts_argument_count(argument_count):
            return _to_callable_function(connection, each)
    there = ", ".join(each.display_signature for each in found)
    raise NotFound(
        f"No function {name} takes {argument_count} arguments; there is {there}."
        if found
        else f"Function {name} does not exist, or this role may not use it.",
        kind="Function",
        name=str(name),
    )


def _to_callable_function(
    connection: sa.Connection, record: ExternalFunctionRecord
) -> CallableFunction:
    function = record.function
    integration = find_api_integration(connection, function.integration).integration
    if not integration.enabled:
        raise IntegrationDisabled(integration=to_display_name(integration.name))
    return CallableFunction(
        name=record.name,
        function=function,
        integration=integration,
        request_translator=_find_translator(connection, function.request_translator),
        response_translator=_find_translator(connection, function.response_translator),
    )


def _find_translator(connection: sa.Connection, name: str | None) -> Translator | None:
    if name is None:
        return None
    parts = TokenCursor(name).parse_name("a translator", 3).parts
    return find_translator(connection, FunctionName(*parts)).translator
