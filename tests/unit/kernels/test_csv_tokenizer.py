"""The compiled tokenizer says what the plain state machine says, whatever the bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snowmelt.kernels.csv_tokenizer import (
    ROW_HAS_QUOTES,
    ROW_IRREGULAR,
    CsvBlockCutter,
    CsvRecordCounter,
    CsvRecordFinder,
    CsvRules,
    CsvTokens,
    find_invalid_utf8_byte,
)
from snowmelt.kernels.slices import (
    EMPTY_NULL,
    FIELD_QUOTED,
    NEEDS_UNQUOTING,
    PADDING_BYTES,
    PAST_END,
)
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.formats import csv_state_machine
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.request import CsvInput

_DELIMITERS = st.sampled_from(
    [b",", b"|", b"\t", b"\x01", b"||", b"\r", b"\xc2\xb6", b"ab", b",,", b'","', b"aba"]
)
_RECORD_DELIMITERS = st.sampled_from(
    [b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\x1e", b"\n\n", b"\xc2\xb7", b"|", b"xyx"]
)
_QUOTES = st.sampled_from([b'"', b'"', b"'", b"", b"\xc2\xab", b"q"])
_ESCAPES = st.sampled_from([b'"', b"\\", b"\\", b"", b"'", b"\xc2\xa6", b"\\/"])
_COMMENTS = st.sampled_from([b"", b"#", b"#", b"--", b'"', b"\xc2\xa7"])


def tokenize_with_state_machine(
    data: np.ndarray, start: int, end: int, rules: CsvRules, field_indexes: list[int] | None
) -> CsvTokens:
    """Find records and fields with the state machine."""
    text = data[start:end].tobytes()
    rows: list[tuple[int, int, int]] = []
    cells: list[list[tuple[int, int, int]]] = []
    stop = None
    for record in csv_state_machine.parse_records(text, rules):
        if record.has_open_quote and rules.open_quote_fails:
            stop = start + record.start
            break
        fields = [_locate_field_value(text, start, field, rules) for field in record.fields]
        row_flags = 0
        for field in record.fields:
            row_flags |= _compute_field_flags(text, field, rules)
        rows.append((start + record.start, start + record.end, row_flags))
        if field_indexes is not None:
            past = (0, 0, PAST_END)
            fields = [fields[place] if place < len(fields) else past for place in field_indexes]
        cells.append(fields)
    bounds = np.array(rows, np.int32).reshape(-1, 3)
    first = None
    if field_indexes is None:
        first = np.zeros(len(cells) + 1, np.int64)
        np.cumsum([len(fields) for fields in cells], out=first[1:])
        table = np.array([cell for fields in cells for cell in fields], np.int32)
        table = table.reshape(1, -1, 3)
    else:
        table = (
            np.array(cells, np.int32).reshape(len(cells), len(field_indexes), 3).transpose(1, 0, 2)
        )
    return CsvTokens(
        bounds[:, 0],
        bounds[:, 1],
        bounds[:, 2].astype(np.uint8),
        table[:, :, 0],
        table[:, :, 1],
        table[:, :, 2].astype(np.uint8),
        first,
        stop,
    )


def _locate_field_value(
    text: bytes, start: int, field: csv_state_machine.CsvField, rules: CsvRules
) -> tuple[int, int, int]:
    flags = 0
    at, end = field.start, field.end
    if text[at:end] != field.value:
        if not field.is_plain:
            return start + at, start + end, NEEDS_UNQUOTING
        at, end, flags = at + len(rules.quote), end - len(rules.quote), FIELD_QUOTED
    if at == end and rules.empty_is_null:
        flags |= EMPTY_NULL
    return start + at, start + end, flags


def _compute_field_flags(text: bytes, field: csv_state_machine.CsvField, rules: CsvRules) -> int:
    """Return what a field adds to the flags of its record."""
    raw = text[field.start : field.end]
    marks = [mark for mark in (rules.quote, rules.escape) if mark]
    if not any(mark in raw for mark in marks):
        return 0
    needed = any(mark in field.value for mark in (rules.field, rules.record, rules.quote))
    doubled = rules.quote + field.value.replace(rules.quote, 2 * rules.quote) + rules.quote
    if rules.quotes_anywhere or not needed or raw != doubled:
        return ROW_HAS_QUOTES | ROW_IRREGULAR
    return ROW_HAS_QUOTES


@st.composite
def inputs(draw: st.DrawFn) -> tuple[CsvRules, bytes] | None:
    """Rules of a dialect and bytes that are dense with what they give a meaning to."""
    options = CsvInput(
        record_delimiter=draw(_RECORD_DELIMITERS),
        field_delimiter=draw(_DELIMITERS),
        quote=draw(_QUOTES),
        escape=draw(_ESCAPES),
        comment=draw(_COMMENTS),
        quoted_record_delimiter=draw(st.booleans()),
    )
    try:
        rules = make_csv_rules(options, draw(st.sampled_from(Dialect)))
    except SelectError:
        return None
    pieces = [options.record_delimiter, options.field_delimiter, options.quote, options.escape]
    pieces += [options.comment, b"\r", b"a", b"\x00", b" ", b"x" * 70, b"\xc2", b"1,2", b"\n"]
    text = b"".join(draw(st.lists(st.sampled_from(pieces), max_size=40)))
    return rules, text


def padded(text: Any, before: bytes = b"") -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(before + text + b'"\n,\\' * (PADDING_BYTES // 4)), np.uint8)


def said(
    data: np.ndarray[Any, Any], tokens: CsvTokens, rules: CsvRules
) -> tuple[list[tuple[tuple[int, int], bool, list[bytes | str | None]]], int | None]:
    """Return what tokens say: rows with the values of their fields (None: NULL)."""
    rows = []
    for i in range(tokens.row_count):
        if tokens.field_offsets is not None:
            cells = [(0, at) for at in range(tokens.field_offsets[i], tokens.field_offsets[i + 1])]
        else:
            cells = [(k, i) for k in range(len(tokens.starts))]
        fields = []
        for cell in cells:
            raw = data[tokens.starts[cell] : tokens.ends[cell]].tobytes()
            flags = int(tokens.flags[cell])
            value = csv_state_machine.unquote_field(raw, rules) if flags & NEEDS_UNQUOTING else raw
            null = flags & EMPTY_NULL or (
                flags & NEEDS_UNQUOTING and rules.empty_is_null and not value
            )
            fields.append("past the end" if flags & PAST_END else None if null else value)
        bounds = (int(tokens.row_starts[i]), int(tokens.row_ends[i]))
        rows.append((bounds, bool(tokens.row_flags[i] & ROW_HAS_QUOTES), fields))
    return rows, tokens.invalid_record_start


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 6, deadline=None)
@given(
    inputs(),
    st.one_of(st.none(), st.sets(st.integers(0, 5))),
    st.binary(max_size=3),
    st.integers(1, 9),
)
def test_tokens_are_those_of_the_state_machine(
    case: tuple[CsvRules, bytes] | None, places: Any, before: bytes, fewest: int
) -> None:
    if case is None:
        return
    rules, text = case
    wanted = None if places is None else sorted(places)
    data = padded(text, before)
    bounds = len(before), len(before) + len(text)
    found = CsvRecordFinder(rules, wanted, min_table_rows=fewest)(data, *bounds)
    plain = tokenize_with_state_machine(data, *bounds, rules, wanted)
    assert said(data, found, rules) == said(data, plain, rules)
    # What may be copied as it is has been found to be so; the other way round costs time only.
    assert not np.any(plain.row_flags & ~found.row_flags & ROW_IRREGULAR)


@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(inputs())
def test_the_last_whole_record_ends_where_the_state_machine_says(
    case: tuple[CsvRules, bytes] | None,
) -> None:
    if case is None:
        return
    rules, text = case
    closed = [
        record.next_start
        for record in csv_state_machine.parse_records(text, rules)
        if record.has_delimiter
    ]
    memory = bytearray(text + bytes(PADDING_BYTES))
    cut = CsvBlockCutter(rules)(memory, 0, len(text))
    # Comments and blank lines are no records, but a cut may well stand behind them.
    assert cut >= max(closed, default=0)
    whole = list(csv_state_machine.parse_records(text[:cut], rules))
    assert all(record.has_delimiter for record in whole)
    assert [record.next_start for record in whole] == closed


@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(inputs(), st.binary(max_size=3))
def test_what_is_counted_without_fields_is_counted_right(
    case: tuple[CsvRules, bytes] | None, before: bytes
) -> None:
    if case is None:
        return
    rules, text = case
    start, end = len(before), len(before) + len(text)
    count, ascii_only = CsvRecordCounter(rules)(padded(text, before), start, end)
    assert not ascii_only or text.isascii()
    if count is not None:
        records = list(csv_state_machine.parse_records(text, rules))
        assert count == len(records)
        assert not any(record.has_open_quote and rules.open_quote_fails for record in records)


@pytest.mark.parametrize("dialect", Dialect)
def test_records_with_quoted_delimiters_are_counted_without_fields(dialect: Any) -> None:
    rules = make_csv_rules(CsvInput(), dialect)
    text = b'1,"West, Isle",x\n2,"say ""yes""","a"\r\n,,\n3,"",\n' * 50 + b'4,"last"'
    assert CsvRecordCounter(rules)(padded(text), 0, len(text))[0] == 201


@pytest.mark.slow
@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("places", [(), (0,), (1, 3), (7,), None])
def test_many_records_overflow_no_table(dialect: Any, places: tuple[int, ...] | None) -> None:
    rules = make_csv_rules(CsvInput(escape=b"\\"), dialect)
    rng = np.random.default_rng(7)
    letters = np.frombuffer(b'ab,,,"\\\n\n\n\r', np.uint8)
    text = rng.choice(letters, 12_000).tobytes() + b"\n" * 2_000 + b"," * 2_000
    if rules.open_quote_fails:
        text = text.replace(b'"', b"")
    data = padded(text)
    found = CsvRecordFinder(rules, places)(data, 0, len(text))
    plain = tokenize_with_state_machine(data, 0, len(text), rules, cast("list[int] | None", places))
    assert said(data, found, rules) == said(data, plain, rules)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=3).map(str.encode),
            st.binary(max_size=3),
            st.just(b"x" * 63),
            st.sampled_from([b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"\xc1\xbf"]),
        ),
        max_size=6,
    ).map(b"".join)
)
@example(b"\xf0\x90\x80")
def test_bad_utf8_is_found_where_python_finds_it(text: Any) -> None:
    try:
        text.decode()
        expected = -1
    except UnicodeDecodeError as error:
        expected = error.start
    assert find_invalid_utf8_byte(padded(text), 0, len(text)) == expected


def test_a_buffer_without_padding_is_refused() -> None:
    rules = make_csv_rules(CsvInput(), Dialect.AWS)
    with pytest.raises(ValueError, match="10"):
        CsvRecordFinder(rules, (0,))(np.zeros(10, np.uint8), 0, 10)


IN_BOUNDS = """
import random
import numpy as np
from snowmelt.select.formats.csv_dialect import make_csv_rules
from snowmelt.select.dialect import Dialect
from snowmelt.select.request import CsvInput
from snowmelt.kernels.csv_tokenizer import CsvRecordFinder

chance = random.Random(5)
for dialect in Dialect:
    for places in ((), (0,), (1, 4), None):
        rules = make_csv_rules(CsvInput(), dialect)
        find = CsvRecordFinder(rules, places)
        for size in (0, 1, 63, 64, 65, 300, 5_000, 40_000):
            text = bytes(chance.choices(b'a,,"#' + b"\\n\\r" * 3, k=size))
            data = np.frombuffer(bytearray(text + bytes(64)), np.uint8)
            find(data, 0, size)
            for fewest in range(1, 40) if size < 1_000 else ():
                CsvRecordFinder(rules, places, min_table_rows=fewest)(data, 0, size)
print("done")
"""


@pytest.mark.slow
def test_no_kernel_writes_outside_its_tables(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", IN_BOUNDS]
    assert subprocess.check_output(command, env=environment, timeout=250) == b"done\n"
