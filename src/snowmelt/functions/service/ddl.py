"""Statements that create a service's functions where they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.functions.service.declared import DeclaredFunction


def create_statement(
    function: DeclaredFunction, url: str, integration: str, *, replace: bool
) -> str:
    """Return a CREATE EXTERNAL FUNCTION for Snowmelt and for Snowflake."""
    signature, options = function.signature, function.options
    lines = [f"CREATE {'OR REPLACE ' if replace else ''}EXTERNAL FUNCTION {signature.ddl()}"]
    if signature.is_strict:
        lines.append("RETURNS NULL ON NULL INPUT")
    if options.immutable:
        lines.append("IMMUTABLE")
    if options.comment is not None:
        lines.append(f"COMMENT = {_quoted(options.comment)}")
    lines.append(f"API_INTEGRATION = {integration}")
    if options.max_batch_rows is not None:
        lines.append(f"MAX_BATCH_ROWS = {options.max_batch_rows}")
    lines.append(f"AS {_quoted(url.rstrip('/') + '/' + signature.name)};")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
