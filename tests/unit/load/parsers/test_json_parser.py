"""JSON objects become rows however they lie in a file, and a broken one costs no other."""

from __future__ import annotations

import datetime as dt
import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused
from snowmelt.load.parsers import definition
from snowmelt.load.parsers.warmup import COMPILED_READERS
from snowmelt.load.portion import Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.parser_runs import FILE, load, load_records
from support.phases import built

SCHEMA = TableSchema(
    1,
    (
        Column("A", LogicalType.FIXED, 1, precision=6, scale=2),
        Column("B", LogicalType.TEXT, 2, length=4),
        Column("C.D", LogicalType.REAL, 3),
    ),
)
NUMBERS = TableSchema(1, (Column("A", LogicalType.FIXED, 1, precision=9, scale=0),))


def numbers(data: bytes, **options: Any) -> tuple[list[int], list[Any]]:
    rows, rejects = load("json", data, NUMBERS, **options)
    return [int(row[0]) for row in rows], [reject.data for reject in rejects]


def test_objects_stand_on_lines_next_to_each_other_over_lines_or_in_an_array() -> None:
    data = b'\xef\xbb\xbf{"a":1}\n{"a":2}{"a":3}\r\n\n{"a":\n 4}\n[{"a":5},\n{"a":6}]\n{"a":7}'
    for size in (None, 1, 7):
        assert numbers(data, size=size) == ([1, 2, 3, 4, 5, 6, 7], [])


@pytest.mark.parametrize(
    ("data", "rows", "rejected"),
    [
        (b'[[{"a":1}]]\n[{"a":2}]', [2], [b'{"a":1}']),
        (b'[{"a":1},\n[{"a":2},{"a":3}], {"a":4}]', [1, 4], [b'{"a":2}', b'{"a":3}']),
        (b'[{"a":1}]\n\n[{"a":2}] [{"a":3}]\n', [1, 2, 3], []),
        (b"[" + b" " * 50 + b'[{"a":1}' + b" " * 50 + b']] {"a":2}', [2], [b'{"a":1}']),
        (b'[{"a":1},\n{"a":},\n{"a":2}]\n[{"a":3}]', [1, 2, 3], [b'{"a":},']),
    ],
)
def test_records_in_an_array_of_an_array_are_rejected(
    data: bytes, rows: list[int], rejected: list[bytes]
) -> None:
    for size in (None, 1, 7):
        assert numbers(data, size=size) == (rows, rejected)


def test_a_broken_record_costs_its_line() -> None:
    data = b'{"a":1}\n{"a":}\n{"a":2}\n{"a": 3\n{"a":4}\nno\n{"a":5}\n"x"\n{"a":6'
    for size in (None, 1, 7):
        assert numbers(data, size=size) == (
            [1, 2, 4, 5],
            [b'{"a":}', b'{"a": 3', b"no", b'"x"', b'{"a":6'],
        )


def test_a_reject_says_where_and_why() -> None:
    rows, rejects = load("json", b'{"a":1}\n{"a":"x"}\n{"a" 2}\n{"b":"abcd","a":1e9}\n', SCHEMA)
    assert len(rows) == 1
    assert [(r.record, r.offset, r.column) for r in rejects] == [
        (2, 8, "A"),
        (3, 18, None),
        (4, 26, "A"),
    ]
    assert [r.reason for r in rejects[:2]] == [
        "column 1 (A NUMBER(6,2)): Not a valid number: 'x'",
        "not JSON: unexpected character, expected ':' after key at byte 5",
    ]
    assert "Number out of representable exclusive range of (-1e4..1e4)" in rejects[2].reason


def test_a_value_that_does_not_fit_is_null_under_the_old_name_unless_it_may_not_be() -> None:
    assert load("fjsonparser", b'{"a":"x","b":"y"}', SCHEMA) == ([(None, "y", None)], [])
    rows, rejects = load(
        "fjsonparser", b'{"a":"x","b":"y"}', SCHEMA, reject_on_materialized_type_error=True
    )
    assert (len(rows), len(rejects)) == (0, 1)
    schema = TableSchema(1, (Column("A", LogicalType.REAL, 1, nullable=False),))
    rows, rejects = load("fjsonparser", b'{"a":"x"}\n{}\n{"a":1}', schema)
    assert (len(rows), len(rejects)) == (1, 2)


def test_keys_are_columns_in_any_case_and_nested_ones_by_their_path() -> None:
    data = b'{"a":1,"c":{"d":2}}\n{"A":3,"C":{"D":4,"x":1}}\n{"c.d":5}\n'
    assert [row[::2] for row in load("json", data, SCHEMA)[0]] == [(1, 2), (3, 4), (None, 5)]
    rows = load("json", data, SCHEMA, flatten_maps=False)[0]
    assert [row[2] for row in rows] == [None, None, 5]


def test_elements_of_arrays_are_columns_where_asked() -> None:
    schema = TableSchema(1, (Column("L_1", LogicalType.FIXED, 1, precision=3, scale=0),))
    options: dict[str, Any] = {"flatten_arrays": True, "key_separator": "_"}
    assert load("json", b'{"l":[1,2]}', schema, **options)[0] == [(2,)]
    assert load("json", b'{"l":[1,2]}', schema, key_separator="_")[0] == [(None,)]


def test_semi_structured_columns_keep_numbers_as_they_are_written() -> None:
    schema = TableSchema(1, (Column("V", LogicalType.VARIANT, 1), Column("T", LogicalType.TEXT, 2)))
    data = b'{"v":{"b":1.50,"a":[1e2,"x"]},"t":{"k":null}}\n{"v":"[1]","t":2.50}'
    assert load("json", data, schema)[0] == [
        ('{"b":1.50,"a":[1E+2,"x"]}', '{"k":null}'),
        ('"[1]"', "2.5"),
    ]


def test_dates_are_texts_or_digits_of_a_date_and_no_counts() -> None:
    schema = TableSchema(
        1, (Column("D", LogicalType.DATE, 1), Column("T", LogicalType.TIMESTAMP_NTZ, 2, scale=6))
    )
    data = b'{"d":"2013-01-01","t":"2013-01-01 05:00"}\n{"d":20130102,"t":"20130102"}\n{"d":86400}\n{"t":1357016767}'
    rows, rejected = load("json", data, schema)
    assert rows == [
        (dt.date(2013, 1, 1), dt.datetime(2013, 1, 1, 5)),
        (dt.date(2013, 1, 2), dt.datetime(2013, 1, 2)),
    ]
    assert [each.record for each in rejected] == [3, 4]


def test_keys_that_are_double_empty_or_odd_are_treated_as_asked() -> None:
    assert numbers(b'{"a":1,"a":2}') == ([2], [])
    assert numbers(b'{"a":1,"x":{"y":1,"y":2}}', reject_on_duplicate=True)[0] == []
    assert numbers(b'{"a":1,"":2}', reject_on_empty_key=True)[0] == []
    schema = TableSchema(1, (Column("A_B", LogicalType.TEXT, 1),))
    options: dict[str, Any] = {"suppress_nonalphanumeric_key_chars": True}
    assert load("json", b'{"a-b":"x"}', schema, **options)[0] == [("x",)]


def test_records_begin_at_a_start_point() -> None:
    data = b'{"x":{"r":[{"a":1},{"a":"z"},{"a":2}]},"r":{"a":3}}\n{"a":4}\n{"r":[{"a":5}]}'
    found, rejected = numbers(data, start_point="r")
    assert found == [1, 2, 5]
    assert len(rejected) == 2
    assert numbers(data, start_point="r", start_point_occurrence=2)[0] == [3]


def test_with_a_terminator_each_record_ends_at_one_and_portions_agree() -> None:
    data = b"".join(b'{"a":%d}%s;' % (at, b" " * (at % 5)) for at in range(60)) + b'{"a":'
    expected = numbers(data, record_terminator=";")
    assert expected == (list(range(60)), [b'{"a":'])
    for size in (1, 7, 50):
        found, rejected = [], []
        for at in range(0, len(data), size):
            portion = Portion(FILE, at, size)
            part = numbers(data[at:], portion=portion, record_terminator=";", size=9)
            found += part[0]
            rejected += part[1]
        assert (found, rejected) == expected
    assert numbers(b'{"a":1}{"a":2}\n{"a":3}\n', record_terminator="\n")[0] == [3]
    assert built(definition("json"), {"record_terminator": "\n"}).splittable
    assert not built(definition("json"), {}).splittable


@pytest.mark.slow
def test_a_record_that_is_too_long_is_rejected_by_itself() -> None:
    data = b'{"a":1}\n{"a":"' + b"x" * 3_000_000 + b'"}\n{"a":2}\n'
    rows, rejects = load("json", data, NUMBERS, max_record=1_500_000, size=100_000)
    assert [row[0] for row in rows] == [1, 2]
    assert rejects[0].record == 2


def test_each_message_is_one_object() -> None:
    messages = [
        b'{"a":1}',
        b'{"a":2}{"a":3}',
        b"",
        b'{"a":\n4}',
        b'{"a":',
        b'{"a":5}}',
        b'[{"a":1}]',
    ]
    rows, rejects = load_records("kafkajsonparser", messages, NUMBERS)
    assert [int(row[0]) for row in rows] == [1, 4]
    assert [(r.record, r.offset, r.data) for r in rejects] == [
        (2, 7, messages[1]), (3, 21, b""), (5, 29, messages[4]), (6, 34, messages[5]), (7, 42, messages[6]),
    ]  # fmt: skip


def test_messages_that_make_objects_only_together_are_rejected() -> None:
    messages = [b'{"a":', b'{"b":1}}', b'{"c":1}{"d":1}']
    rows, rejects = load_records("kafkajsonparser", messages, NUMBERS)
    assert (rows, len(rejects)) == ([], 3)


def test_a_start_point_before_the_first_is_refused() -> None:
    with pytest.raises(LoadRefused):
        built(definition("fjsonparser"), {"start_point_occurrence": 0})


_SCALARS = st.sampled_from(
    ['1', '2.5', '1.005', '-0', '1e2', '99999', '"7"', '" 7 "', '"x"', '"abcde"', '"é"', '"\\u0041"',
     'true', 'null', 'NaN', '1E400', '12345678901234567890.5', '{}', '[1]', '"\\ud800"', '01', '"2013-01-01"']
)  # fmt: skip
_OBJECTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "A", "b", "c", "x", "c.d"]),
        _SCALARS | _SCALARS.map(lambda v: f'{{"d":{v}}}'),
    ),
    max_size=3,
).map(lambda pairs: "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}")


@given(
    objects=st.lists(_OBJECTS | st.sampled_from(["", "x", "{", '{"a":1', "}"]), max_size=6),
    gap=st.sampled_from(["\n", "\n\n", "", " \r\n", ","]),
    name=st.sampled_from(["json", "fjsonparser"]),
)
def test_blocks_are_read_as_each_object_is_by_itself(
    objects: list[Any], gap: Any, name: Any
) -> None:
    data = gap.join(objects).encode()
    found = []
    for is_compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                COMPILED_READERS["JSON"], "can_be_used", lambda is_compiled=is_compiled: is_compiled
            )
            # Kernels flatten no arrays: all is read the exact way. There are none to flatten.
            found += [repr(load(name, data, SCHEMA, flatten_arrays=flat)) for flat in (False, True)]
    assert found == found[:1] * 4


@given(st.lists(_OBJECTS, max_size=6))
def test_messages_that_python_reads_are_rows_and_others_rejects(messages: list[Any]) -> None:
    rows, rejects = load_records("kafkajsonparser", [text.encode() for text in messages], SCHEMA)
    expected = [text for text in messages if _loads(text) is not None]
    assert len(rows) == len(expected)
    assert [reject.data.decode() for reject in rejects] == [
        text for text in messages if _loads(text) is None
    ]


def _loads(text: Any) -> Any:
    try:
        found = json.loads(text, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return None
    return None if "1E400" in text or "ud800" in text else found


@given(
    st.lists(
        st.sampled_from(
            [b'{"a": 1}', b'{"a": 2', b"", b'{"a": 3} ', b'{"a": "x"}', b'{"a": "}', b"}{", b"[1]"]
        ),
        max_size=6,
    )
)
def test_a_few_messages_without_an_end_cost_no_other(odd: list[Any]) -> None:
    good = [b'{"a": %d}' % number for number in range(60)]
    messages = [*good[:30], *odd, *good[30:]]
    rows, rejects = load_records("json", messages, NUMBERS)
    each = [_alone(message) for message in messages]
    assert rows == [row for one, _ in each for row in one]
    assert [(r.data, r.reason) for r in rejects] == [
        (r.data, r.reason) for _, one in each for r in one
    ]
    starts = [sum(map(len, messages[:at])) for at in range(len(messages))]
    assert [r.offset for r in rejects] == [
        starts[at] for at, (_, one) in enumerate(each) for _ in one
    ]


@functools.cache
def _alone(message: Any) -> tuple[list[tuple[Any, ...]], list[Any]]:
    return load_records("json", [message], NUMBERS)


FLAT = TableSchema(
    1,
    (
        Column("A", LogicalType.FIXED, 1, precision=6, scale=2),
        Column("B", LogicalType.TEXT, 2, length=4),
        Column("N", LogicalType.FIXED, 3, precision=18, scale=0),
        Column("R", LogicalType.REAL, 4),
        Column("F", LogicalType.BOOLEAN, 5),
        Column("D", LogicalType.DATE, 6),
        Column("M", LogicalType.FIXED, 7, precision=9, scale=0, nullable=False),
    ),
)
_GOOD = b'{"a":1.25,"b":"x","n":%d,"r":0.5,"f":true,"d":"2013-01-01","m":1}'
_ODD_NUMBERS = st.sampled_from(
    ['-0', '-0.0', '0', '1.005', '1.0050', '0.125', '9999.995', '-9999.99', '10000', '1e3', '1e-400', '4.5e-324',
     '1125899906842624.5', '123456789012345678', '-9223372036854775808', '9223372036854775808', '1E400',
     '12.340000000000000000001', '9007199254740993']
)  # fmt: skip
_FLAT_OBJECTS = st.lists(
    st.tuples(st.sampled_from(["a", "A", "b", "n", "r", "f", "d", "m", "x"]), _SCALARS | _ODD_NUMBERS),
    max_size=4,
).map(lambda pairs: "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}")  # fmt: skip


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 5 // 3)
@given(
    odd=st.lists(
        _FLAT_OBJECTS
        | st.sampled_from(["", "x", "{", '{"a":1', "}", '{"x":1e999,"m":1}', '{"m":1}{"m":2}']),
        min_size=1,
        max_size=5,
    ),
    name=st.sampled_from(["json", "fjsonparser", "kafkajsonparser"]),
)
def test_odd_objects_among_good_ones_are_read_as_each_is_by_itself(
    odd: list[Any], name: Any
) -> None:
    messages = [_GOOD % number for number in range(60)]
    messages[30:30] = [text.encode() for text in odd]
    if name == "kafkajsonparser":
        fast = load_records(name, messages, FLAT)
        slow = load_records(name, messages, FLAT, flatten_arrays=True)
    else:
        data = b"\n".join(messages)
        fast, slow = load(name, data, FLAT), load(name, data, FLAT, flatten_arrays=True)
    assert repr(fast) == repr(slow)


def test_a_key_that_is_written_in_two_ways_counts_as_it_comes_last() -> None:
    messages = [b'{"a":1}'] * 40 + [b'{"A":2,"a":3}', b'{"a":4,"A":5}', b'{"A":6}'] * 2
    rows, rejects = load_records("json", messages, NUMBERS)
    assert ([int(row[0]) for row in rows[40:]], rejects) == ([3, 5, 6] * 2, [])


def test_bytes_that_are_no_text_are_refused_where_no_column_wants_them_too() -> None:
    messages = [b'{"a":1,"x":"y"}'] * 20 + [b'{"a":2,"x":"\xff"}', b'{"a":3,"x":{"\xff":1}}']
    rows, rejects = load_records("json", messages, NUMBERS)
    assert (len(rows), [r.data for r in rejects]) == (20, messages[20:])
