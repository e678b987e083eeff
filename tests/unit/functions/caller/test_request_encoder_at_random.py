"""Values travel over HTTP as an oracle of Python's own `json` and `decimal` says, or are refused.

The service on the other side reads requests with the standard library. What it answers with is made
here, as text, and what comes of it is computed here again, from the rules of the published format.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snowmelt.functions.errors import BatchInvalid, CallFailed
from support import function_calls
from support.functions_service import hosted

REFUSED = object()
_WIDE = Context(prec=200)
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Said:
    """What the service answers with, and what came to it."""

    def __init__(self):
        self.fragments: list[str] | None = None
        self.rows: list[Any] = []
        self.url = ""
        self._calls = itertools.count()

    def next_url(self):
        """Return a URL of its own for each call: failures of others do not keep it from being called."""
        return f"{self.url}/{next(self._calls)}/f"

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.rows = json.loads(body, parse_float=Decimal)["data"]
        if self.fragments is None:
            answer = body
        else:
            rows = ",".join(f"[{at},{each}]" for at, each in enumerate(self.fragments))
            answer = f'{{"data":[{rows}]}}'.encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module")
def service():
    said = Said()
    with hosted(said) as url:
        said.url = url
        yield said


def value_of(fragment: str, kind: str, precision: int = 0, scale: int = 0):
    """Return what a result is by the rules, REFUSED where it is none."""
    parsed = json.loads(fragment, parse_float=Decimal, parse_constant=Decimal)
    if parsed is None:
        return None
    if kind == "VARCHAR":
        text = parsed if isinstance(parsed, str) else fragment
        return text if len(text) <= precision else REFUSED
    if kind == "BOOLEAN":
        if isinstance(parsed, str) and parsed.strip(" ").lower() in {"true", "false"}:
            return parsed.strip(" ").lower() == "true"
        return parsed if isinstance(parsed, bool) else REFUSED
    if isinstance(parsed, str):
        if not _PLAIN_NUMBER.fullmatch(parsed.strip(" ")):
            return REFUSED
        parsed = Decimal(parsed.strip(" "))
    if isinstance(parsed, bool) or not isinstance(parsed, int | Decimal):
        return REFUSED
    number = Decimal(parsed)
    if kind == "FLOAT":
        return REFUSED if not math.isfinite(found := _nearest(number)) else found
    if number.is_zero():
        return Decimal(0)
    if number.adjusted() >= precision:
        return REFUSED
    rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE)
    if (scale == 0 and rounded != number) or abs(rounded) >= Decimal(10) ** (precision - scale):
        return REFUSED
    return rounded


def _nearest(number: Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


_DIGITS = st.from_regex(r"(0|[1-9][0-9]{0,45})", fullmatch=True)
_JSON_NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    _DIGITS,
    st.just("") | st.from_regex(r"\.[0-9]{1,45}", fullmatch=True),
    st.just("") | st.from_regex(r"[eE][+-]?[0-9]{1,3}", fullmatch=True),
)
_ODD_TEXTS = st.sampled_from(
    ["1_000", "٣", "1e400", "-1E-400", " 7 ", "+5", ".5", "5.", "", "-", "1e", "0x10", "1,5", "True",
     "NaN1", "toolong", "1 000", "\u00a07", "007"]
)  # fmt: skip
_FRAGMENTS = st.one_of(
    _JSON_NUMBERS,
    _JSON_NUMBERS.map(json.dumps),
    _ODD_TEXTS.map(json.dumps),
    st.text(max_size=5).map(json.dumps),
    st.sampled_from(["true", "false", "null", "1.10", "100.0", "1e2", "-0", "-0.0"]),
)
_TYPES = [
    ("NUMBER", (38, 0)), ("NUMBER(5,0)", (5, 0)), ("NUMBER(10,2)", (10, 2)),
    ("NUMBER(38,10)", (38, 10)), ("FLOAT", ()), ("BOOLEAN", ()), ("VARCHAR(3)", (3,)),
    ("VARCHAR(40)", (40,)),
]  # fmt: skip


@pytest.mark.parametrize(("type_text", "sizes"), _TYPES, ids=[text for text, _ in _TYPES])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fragments=st.lists(_FRAGMENTS, min_size=1, max_size=4))
def test_a_result_is_what_its_type_says_or_is_refused_with_its_row(
    service, type_text, sizes, fragments
):
    service.fragments = fragments
    expected = [value_of(each, type_text.partition("(")[0], *sizes) for each in fragments]
    plan = function_calls.plan(service.next_url(), arguments=("VARCHAR",), returns=type_text)
    rows = function_calls.rows(["x"] * len(fragments))
    if REFUSED in expected:
        with pytest.raises(
            CallFailed, match=rf"[Rr]ow {expected.index(REFUSED)}\b|A text holds half"
        ):
            function_calls.ask(plan, rows)
    else:
        found = function_calls.ask(plan, rows)
        assert found == expected
        assert [str(each) for each in found if isinstance(each, float)] == [
            str(each) for each in expected if isinstance(each, float)
        ]


_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=10).filter(
    lambda number: abs(number) < 10**28
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(_NUMBERS, _FLOATS, st.text(), st.integers(-(10**38) + 1, 10**38 - 1)),
                  min_size=1, max_size=5),
)  # fmt: skip
def test_an_argument_arrives_as_the_value_that_it_was(service, rows):
    service.fragments = ["0"] * len(rows)
    numbers, floats, texts, whole = zip(*rows, strict=True)
    columns = [
        pa.array(numbers, pa.decimal128(38, 10)),
        pa.array(floats),
        pa.array([text.encode("utf-8", "replace").decode() for text in texts]),
        pa.array([*map(Decimal, whole)], pa.decimal128(38, 0)),
    ]
    plan = function_calls.plan(
        service.next_url(), returns="NUMBER",
        arguments=("NUMBER(38,10)", "FLOAT", "VARCHAR", "NUMBER(38,0)"),
    )  # fmt: skip
    function_calls.ask(plan, function_calls.rows(*columns))
    for at, (number_of_row, number, real, text, integer) in enumerate(service.rows):
        assert number_of_row == at
        assert Decimal(number) == numbers[at]
        assert float(real) == floats[at]
        assert text == columns[2][at].as_py()
        assert integer == whole[at]


@pytest.mark.parametrize(
    ("type_text", "value", "reason"),
    [
        ("VARCHAR(3)", "toolong", r"argument a0 of row 1 has 7 characters, more than VARCHAR\(3\)"),
        ("BINARY(2)", b"long", r"argument a0 of row 1 has 4 bytes, more than BINARY\(2\)"),
    ],
)
def test_an_argument_longer_than_its_type_is_refused_before_anything_is_sent(
    service, type_text, value, reason
):
    service.rows = []
    plan = function_calls.plan(service.next_url(), arguments=(type_text,))
    with pytest.raises(BatchInvalid, match=reason):
        function_calls.ask(plan, function_calls.rows([value[:2], value]))
    assert service.rows == []


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        ("1.10", True), ("1" * 38, True), ("1" * 39, False), ("0." + "1" * 38, True),
        ("0." + "1" * 39, False), ("1e400", False), ("1e-400", False), ("1.5e300", True),
        ("1.0000000000000001e-05", True), ("1.2345678901234567890123e5", False),
        ("0." + "0" * 40 + "5", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{}", '{{"a":[1,{}]}}', '{{"1e400":{}}}'])
def test_a_number_in_a_document_is_one_that_a_variant_holds_or_is_refused(
    service, number, fits, form
):
    fragment = form.format(number)
    service.fragments = ['"1e400"', fragment]
    plan = function_calls.plan(service.next_url(), returns="VARIANT")
    if fits:
        assert function_calls.ask(plan, function_calls.rows(["x", "y"])) == ['"1e400"', fragment]
    else:
        with pytest.raises(CallFailed, match="Row 1: the VARIANT has a number"):
            function_calls.ask(plan, function_calls.rows(["x", "y"]))


@pytest.mark.parametrize(
    ("type_text", "fragment"),
    [
        ("DATE", '"20240131"'), ("DATE", '"2024-W05-3"'), ("DATE", '"2024-01-31xyz"'),
        ("DATE", '"0000-01-01"'), ("TIME", '"160000"'), ("TIME", '"16:00:00+05:00"'),
        ("TIMESTAMP_NTZ", '"20240131"'), ("TIMESTAMP_NTZ", '"2024-01-31x10:00"'),
        ("TIMESTAMP_NTZ", '"0000-01-01 00:00:00"'), ("TIMESTAMP_TZ", '"9999-12-31 23:59:59 -0800"'),
        ("BINARY", '"00 ff"'), ("BINARY", '" 00"'), ("BINARY", '"00 "'), ("BINARY(1)", '"00ff"'), ("BOOLEAN", "1"), ("OBJECT", "[]"),
        ("ARRAY", "{}"), ("FLOAT", "true"), ("NUMBER", "true"),
    ],
)  # fmt: skip
def test_what_is_no_value_of_the_type_is_refused_with_its_row(service, type_text, fragment):
    service.fragments = ["null", fragment]
    plan = function_calls.plan(service.next_url(), returns=type_text)
    with pytest.raises(CallFailed, match=r"Row 1: "):
        function_calls.ask(plan, function_calls.rows(["x", "y"]))


@pytest.mark.parametrize(
    ("type_text", "fragment", "text"),
    [
        ("TIMESTAMP_NTZ(3)", '"2024-01-31 10:00:00.123999"', "2024-01-31 10:00:00.123000"),
        ("TIMESTAMP_NTZ(0)", '"1969-12-31 23:59:59.999999"', "1969-12-31 23:59:59"),
        ("TIMESTAMP_TZ(0)", '"2024-01-31 10:00:00.5 +0200"', "2024-01-31 08:00:00+00:00"),
        ("TIME(0)", '"10:00:00.999"', "10:00:00"),
        ("TIMESTAMP_NTZ", '"2024-01-31T10:00:00Z"', "2024-01-31 10:00:00"),
    ],
)
def test_digits_that_a_time_has_not_are_cut_off(service, type_text, fragment, text):
    service.fragments = [fragment]
    plan = function_calls.plan(service.next_url(), returns=type_text)
    assert [str(each) for each in function_calls.ask(plan, function_calls.rows(["x"]))] == [text]


def test_an_argument_has_the_digits_of_its_type(service):
    service.fragments = ["0"]
    moments = pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us"))
    plan = function_calls.plan(
        service.next_url(), returns="NUMBER", arguments=("TIMESTAMP_NTZ(3)", "TIMESTAMP_NTZ(0)")
    )
    function_calls.ask(plan, function_calls.rows(moments, moments))
    assert service.rows == [[0, "1969-12-31 23:59:59.999000", "1969-12-31 23:59:59"]]
