"""Call plans for tests of the caller."""

from __future__ import annotations

from typing import Any

from snowmelt.functions.caller.plan import CallerOptions, CallPlan, QueryPosition
from snowmelt.functions.definition import ApiIntegration, ExternalFunction
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text

URL = "http://service.test:8080/f"


def plan(options: CallerOptions | None = None, **clauses: Any) -> CallPlan:
    """Return the plan of a function `f(VARCHAR) RETURNS VARCHAR` with these clauses."""
    text = parse_sql_type_text("VARCHAR")
    function = ExternalFunction(
        **{
            "signature": FunctionSignature("f", (FunctionArgument("a", text),), text),
            "url": URL,
            "integration": "i",
            **clauses,
        }
    )
    integration = ApiIntegration("i", "aws_api_gateway", ("http://service.test:8080/",))
    return CallPlan(function, integration, "UTC", options=options or CallerOptions())


def place(attempt: int = 0, query_id: str = "query") -> QueryPosition:
    """Return a position in a query."""
    return QueryPosition(query_id, 1, 0, attempt)
