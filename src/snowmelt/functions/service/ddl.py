"""Statements that create a service's functions where they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.functions import ddl
from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    ExternalFunction,
    NullInput,
    Volatility,
)

if TYPE_CHECKING:
    from snowmelt.functions.service.declared import DeclaredFunction


def create_statement(
    function: DeclaredFunction, url: str, integration: str, *, replace: bool
) -> str:
    """Return a CREATE EXTERNAL FUNCTION for Snowmelt and for Snowflake."""
    signature, options = function.signature, function.options
    definition = ExternalFunction(
        signature=signature,
        url=f"{url.rstrip('/')}/{signature.name}",
        integration=integration,
        null_input=NullInput.STRICT if signature.is_strict else NullInput.CALLED,
        volatility=Volatility.IMMUTABLE if options.immutable else Volatility.VOLATILE,
        comment=DEFAULT_COMMENT if options.comment is None else options.comment,
        max_batch_rows=options.max_batch_rows,
    )
    return ddl.create_statement(definition, signature.name, integration, replace=replace)
