"""What a call gives is matched with what a function takes."""

from __future__ import annotations

import pytest

from snowmelt.catalog.objects.external_functions import CallableFunction, FunctionName
from snowmelt.functions.definition import ApiIntegration, ExternalFunction
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.spark.functions.call_rewriter import (
    CallArgument,
    CallMalformed,
    bind_arguments,
    select_overload,
)

TEXT = parse_sql_type_text("VARCHAR")


def function(*arguments: tuple[str, str | None]) -> CallableFunction:
    listed = tuple(FunctionArgument(name, TEXT, default=default) for name, default in arguments)
    definition = ExternalFunction(FunctionSignature("f", listed, TEXT), "http://h/f", "I")
    name = FunctionName("DEMO", "PUBLIC", "F")
    integration = ApiIntegration("I", "http", ("http://h",))
    return CallableFunction(name, definition, integration, None, None)


ONE = function(("A", None))
THREE = function(("A", None), ("B", None), ("c", "'x'"))


def given(*texts: str, **named: str) -> list[CallArgument]:
    return [CallArgument(text) for text in texts] + [
        CallArgument(text, name) for name, text in named.items()
    ]


def test_overloads_differ_by_the_number_of_arguments() -> None:
    assert select_overload([ONE, THREE], given("1")) is ONE
    assert select_overload([ONE, THREE], given("1", "2")) is THREE
    assert select_overload([ONE, THREE], given("1", "2", "3")) is THREE
    with pytest.raises(
        CallMalformed, match=r"1 argument \(A VARCHAR\) or 2 to 3 arguments .*not 4"
    ):
        select_overload([ONE, THREE], given(*"1234"))


def test_a_function_may_take_none() -> None:
    with pytest.raises(CallMalformed, match="it takes 0 arguments, not 1"):
        select_overload([function()], given("1"))


def test_names_find_their_places_in_any_case() -> None:
    assert [each and each.text for each in bind_arguments(THREE, given("1", C="3", b="2"))] == [
        *"123"
    ]
    assert [each and each.text for each in bind_arguments(THREE, given(B="2", A="1"))] == [
        "1",
        "2",
        None,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (given("1", A="2"), "A is given twice"),
        (given("1", D="2"), "it has no argument D"),
        (given("1", C="2"), "B is missing"),
        (
            [CallArgument("1", "A"), CallArgument("2")],
            "positional arguments must precede named arguments",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[CallArgument], message: str) -> None:
    with pytest.raises(CallMalformed, match=message):
        bind_arguments(THREE, arguments)
