"""Replies become the columns that the value-by-value reader says, or its refusals."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.functions.caller.arrow_types import MIN_COLUMNAR_ROWS, to_arrow_type
from snowmelt.functions.caller.response_decoder import ResponseDecoder
from snowmelt.functions.errors import ResponseInvalid
from snowmelt.functions.signature import parse_sql_type_text
from snowmelt.functions.wire.messages import ResponseReader, RowFailure
from snowmelt.functions.wire.values import Formats

ZONE = "Europe/Berlin"
TYPES = (
    "NUMBER(5,0)", "NUMBER(18,0)", "NUMBER(38,0)", "NUMBER(10,2)", "NUMBER(38,37)", "FLOAT", "BOOLEAN",
    "VARCHAR", "DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ", "BINARY", "VARIANT",
    "OBJECT", "ARRAY",
)  # fmt: skip
# What services write, right and wrong, as JSON.
JSONS = st.sampled_from(
    (
        "null", "true", "0", "-0", "1.5", "-2.675", "1e3", "1E-7", "12345678901234567890",
        "99999999999999999999999999999999999999", "1e400", "0.12345678901234567890123456789012345678901",
        '"a"', '""', '"é𝄞"', '"\\u00e9\\n"', '"\\ud800"', '"],[1,"', '"1.5"', '"nan"', '"2014-01-01"',
        '"2014-01-01 16:00:00"', '"2014-07-01T16:00:00.123456Z"', '"2014-01-01 16:00:00.5 +0130"',
        '"2014-01-01 16:00:00-08:00"', '"2014-03-30 02:30:00"', '"16:00:00"', '"16:00:00.5"', '"00FF"',
        '{"a": [1, 2.50]}', "[1,[2]]", "{}", "[]",
    )
) | st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: json.dumps(text, ensure_ascii=False))  # fmt: skip

# Numbers that a VARIANT cannot hold exactly, which the reader of values alone does not know.
UNFIT = {"1e400", "0.12345678901234567890123456789012345678901"}


def body_of(fragments, blank=""):
    rows = f",{blank}".join(f"[{at},{blank}{each}]" for at, each in enumerate(fragments))
    return f'{{"data":{blank}[{rows}]}}'.encode()


def read(body, type_text="VARCHAR", count=2, **options):
    return ResponseDecoder(parse_sql_type_text(type_text), ZONE, **options).decode(body, count)


def outcome(ask):
    try:
        found = ask()
    except ResponseInvalid as refused:
        return str(refused)
    values = found.values.to_pylist() if isinstance(found.values, pa.Array) else list(found.values)
    return ["NaN" if isinstance(each, float) and math.isnan(each) else each for each in values]


def slowly(body, type_text, count):
    reader = ResponseReader(parse_sql_type_text(type_text), Formats(ZoneInfo(ZONE)), raw=True)
    form = to_arrow_type(parse_sql_type_text(type_text), ZONE)

    def ask():
        reply = reader.read(body, count)
        try:
            return type(reply)(pa.array(reply.values, form).to_pylist())
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            raise ResponseInvalid(reason="cannot be a column") from None

    return outcome(ask)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 5)
@given(
    st.sampled_from(["NUMBER(10,2)", "NUMBER(38,0)", "NUMBER(38,2)", "NUMBER(38,37)"]),
    st.from_regex(r"-?(0|[1-9][0-9]{0,90})(\.[0-9]{1,90})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,9})(\.[0-9]{1,9})?", fullmatch=True),
)
def test_a_number_of_any_length_is_exact_or_refused(type_text, number):
    body = body_of([number, "null"])
    expected = slowly(body, type_text, 2)
    found = outcome(lambda: read(body, type_text, 2))
    assert found == expected or (isinstance(found, str) and expected == "cannot be a column.")


@pytest.mark.parametrize("type_text", TYPES)
@given(data=st.data())
def test_columns_are_read_as_values_are(type_text, data):
    fragments = data.draw(st.lists(JSONS, min_size=1, max_size=4))
    if data.draw(st.booleans()):
        fragments = [data.draw(st.sampled_from(fragments))] * data.draw(st.sampled_from((1, 3)))
    body = body_of(fragments)
    expected = slowly(body, type_text, len(fragments))
    found = outcome(lambda: read(body, type_text, len(fragments)))
    if expected == "cannot be a column.":
        assert isinstance(found, str)
    elif type_text == "VARIANT" and UNFIT.intersection(fragments):
        assert "the VARIANT has a number" in found
    else:
        assert found == expected


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1, max_size=5),
    st.sampled_from(["", " "]),
    st.sampled_from(["VARCHAR", "DATE"]),
)
def test_many_texts_are_read_as_few_are(texts, blank, type_text):
    values = (texts * MIN_COLUMNAR_ROWS)[:MIN_COLUMNAR_ROWS]
    body = body_of([json.dumps(text, ensure_ascii=False) for text in values], blank)
    expected = slowly(body, type_text, MIN_COLUMNAR_ROWS)
    assert outcome(lambda: read(body, type_text, MIN_COLUMNAR_ROWS)) == expected


@given(st.data())
def test_many_texts_that_are_damaged_are_never_read_as_something_else(data):
    values = [f"{at:03}" for at in range(MIN_COLUMNAR_ROWS)]
    body = bytearray(body_of([json.dumps(text) for text in values]))
    place = data.draw(st.integers(0, len(body) - 1) | st.integers(0, 60))
    sign = data.draw(st.integers(0, 255) | st.sampled_from(b'"\\],[0{} \n'))
    if data.draw(st.booleans()):
        body[place] = sign
    else:
        body.insert(place, sign)
    expected = slowly(bytes(body), "VARCHAR", MIN_COLUMNAR_ROWS)
    assert outcome(lambda: read(bytes(body), count=MIN_COLUMNAR_ROWS)) == expected


@pytest.mark.parametrize(
    ("type_text", "fragment", "value"),
    [
        ("NUMBER(10,2)", "2.675", Decimal("2.68")),
        ("NUMBER(10,2)", "-2.675", Decimal("-2.68")),
        ("NUMBER(10,2)", '"2.5"', Decimal("2.50")),
        ("NUMBER(38,0)", "9" * 38, Decimal("9" * 38)),
        ("NUMBER(38,37)", "1." + "1" * 37, Decimal("1." + "1" * 37)),
        ("NUMBER(18,0)", "-7", -7),
        ("FLOAT", '"-inf"', -math.inf),
        ("FLOAT", "1", 1.0),
        ("DATE", '"2014-01-31 16:00:00"', dt.date(2014, 1, 31)),
        ("TIME", '"16:00:00.5"', dt.time(16, 0, 0, 500000)),
        ("BINARY", '"00ff"', b"\x00\xff"),
        ("VARIANT", '{"a" : 1.10}', '{"a" : 1.10}'),
        ("VARIANT", "null", None),
        ("ARRAY", '"[1]"', "[1]"),
        ("VARCHAR", "1.50", "1.50"),
    ],
)
def test_a_value_is_what_the_declared_type_says(type_text, fragment, value):
    assert read(body_of([fragment]), type_text, 1).values.to_pylist() == [value]


@pytest.mark.parametrize("type_text", ["NUMBER(1,0)", "NUMBER(10,0)", "NUMBER(18,0)"])
@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, -(10**18), 10**18])
def test_a_number_with_too_many_digits_does_not_fit_at_the_ends_of_64_bits(type_text, number):
    expected = slowly(body_of([number]), type_text, 1)
    assert "the number does not fit" in expected
    assert outcome(lambda: read(body_of([number]), type_text, 1)) == expected


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2014-01-01 16:00:00", 15),
        ("2014-07-01 16:00:00", 14),
        ("2014-01-01 16:00:00 +0000", 16),
        ("2014-01-01T16:00:00Z", 16),
    ],
)
def test_an_instant_without_offset_is_of_the_session(text, hour):
    (found,) = read(body_of([json.dumps(text)]), "TIMESTAMP_LTZ", 1).values.to_pylist()
    assert found.astimezone(dt.UTC).hour == hour


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"data":[[0,"a"]]}', "wrong number of rows: 1 for 2"),
        (b'{"data":[[0,"a"],[0,"b"]]}', "Row numbers out of order"),
        (b'{"data":[["0","a"],["1","b"]]}', "Row numbers out of order"),
        (b'{"data":[[0,"a",1],[1,"b",1]]}', "index 0 contains 3 elements, but 2"),
        (b'{"result":[]}', 'must contain "data" JSON array'),
        (b"<html>secret</html>", "not JSON"),
        (b'{"data":[[0,"a"],[1,"b"]], "errors":[[7,"E","m"]]}', '"errors" names a row'),
        (b'{"data":[[0,"a"],[1,"\\ud800"]]}', "Row 1: the text has an unpaired surrogate"),
        (b'{"data":[[0,"a"],[1,"\xff"]]}', "byte 21 is not UTF-8"),
    ],
)
def test_a_broken_reply_has_its_sentence(body, reason):
    with pytest.raises(ResponseInvalid, match=reason) as refused:
        read(body)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("type_text", ["VARCHAR", "VARIANT"])
def test_bytes_that_are_not_utf_8_are_no_json(type_text):
    for count in (1, MIN_COLUMNAR_ROWS):
        body = body_of(['"x"'] * count).replace(b"x", b"\xff")
        with pytest.raises(ResponseInvalid, match="not UTF-8"):
            read(body, type_text, count)


def test_a_byte_order_mark_and_nan_are_taken_where_that_is_wanted():
    body = b'\xef\xbb\xbf{"data":[[0,NaN],[1,2]]}'
    with pytest.raises(ResponseInvalid, match="byte order mark"):
        read(body, "FLOAT")
    first, second = read(body, "FLOAT", lenient=True).values.to_pylist()
    assert math.isnan(first)
    assert second == 2


@pytest.mark.parametrize("type_text", ["VARIANT", "VARCHAR", "NUMBER(10,2)", "OBJECT"])
def test_nan_is_no_value_of_another_type(type_text):
    for fragment in ("NaN", '{"a":NaN}', "[Infinity]"):
        with pytest.raises(ResponseInvalid, match="is not a JSON value"):
            read(body_of([fragment]), type_text, 1, lenient=True)
    body = b"\xef\xbb\xbf" + body_of(["null"])
    assert read(body, type_text, 1, lenient=True).values.null_count == 1


def test_a_row_that_failed_has_no_value():
    found = read(b'{"data":[[0,"a"],[1,"b"]],"errors":[[1,"Bad","why"]]}')
    assert found.values.to_pylist() == ["a", None]
    assert found.failures == {1: RowFailure("Bad", "why")}


def test_a_function_that_is_not_null_gives_no_null():
    body = b'{"data":[[0,"a"],[1,null]]}'
    with pytest.raises(ResponseInvalid, match="Row 1: null"):
        read(body, nullable=False)
    failed = b'{"data":[[0,"a"],[1,null]],"errors":[[1,"Bad","why"]]}'
    assert read(failed, nullable=False).values.null_count == 1
    assert read(body).values.null_count == 1
