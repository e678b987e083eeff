"""CREATE EXTERNAL FUNCTION statements from definitions, for Snowmelt and Snowflake.

Clauses with their default value are left out. A statement without clauses of Snowmelt's own also
runs in Snowflake. String literals read the same in Snowmelt, Snowflake and Spark.
"""

from __future__ import annotations

from collections.abc import Iterator

from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    BatchFailureAction,
    ExternalFunction,
    NullInputAction,
    RequestCompression,
    RowErrorAction,
    Volatility,
)


def format_create_function(
    function: ExternalFunction, name: str, integration: str, *, replace: bool = False
) -> str:
    """Return the CREATE EXTERNAL FUNCTION of a definition; what has its default is left out.

    `function`: What to create; its own name and integration do not count.
    `name`: Of the function, as SQL writes it.
    `integration`: Of the API integration, as SQL writes it.
    """
    first = ["CREATE", "EXTERNAL FUNCTION"]
    if replace:
        first.insert(1, "OR REPLACE")
    if function.secure:
        first.insert(-1, "SECURE")
    signature = function.signature
    returns = signature.returns.ddl + ("" if function.returns_null else " NOT NULL")
    lines = [
        f"{' '.join(first)} {name}({signature.format_arguments_ddl()})",
        f"RETURNS {returns}",
        *_format_behavior_clauses(function),
        f"API_INTEGRATION = {integration}",
        *_format_call_clauses(function),
        f"AS {quote_literal(function.url)};",
    ]
    return "\n".join(lines)


def _format_behavior_clauses(function: ExternalFunction) -> Iterator[str]:
    if function.null_input is not NullInputAction.CALLED:
        yield function.null_input.value
    if function.volatility is not Volatility.VOLATILE:
        yield function.volatility.value
    if function.comment != DEFAULT_COMMENT:
        yield f"COMMENT = {quote_literal(function.comment)}"


def _format_call_clauses(function: ExternalFunction) -> Iterator[str]:
    if function.headers:
        pairs = (
            f"{quote_literal(name)} = {quote_literal(value)}" for name, value in function.headers
        )
        yield f"HEADERS = ({', '.join(pairs)})"
    if function.context_headers:
        yield f"CONTEXT_HEADERS = ({', '.join(function.context_headers)})"
    plain = {
        "MAX_BATCH_ROWS": function.max_batch_rows,
        "COMPRESSION": _omit_default(function.compression, RequestCompression.AUTO),
        "REQUEST_TRANSLATOR": function.request_translator,
        "RESPONSE_TRANSLATOR": function.response_translator,
        "MAX_IN_FLIGHT": function.max_in_flight,
        "RATE_LIMIT": function.rate_limit,
        "ROW_ERRORS": _omit_default(function.row_errors, RowErrorAction.ABORT),
        "CACHE": "OFF" if function.cache_bytes == 0 else function.cache_bytes,
        "MAX_BATCH_SIZE": function.max_batch_bytes,
        "ON_BATCH_FAILURE": _omit_default(function.on_batch_failure, BatchFailureAction.ABORT),
        "MAX_BATCH_RETRIES": function.max_batch_retries,
        "BATCH_TIMEOUT_SECS": function.batch_timeout_s,
    }
    for word, value in plain.items():
        if value is not None:
            yield f"{word} = {value}"


def _omit_default(value: str, default: str) -> str | None:
    return None if value == default else value


def quote_literal(text: str) -> str:
    """Return a string as a literal that reads the same here, in Snowflake and in Spark."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
