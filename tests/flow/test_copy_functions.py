"""Each line of docs/reference/copy-functions.md gives the documented result through COPY."""

from __future__ import annotations

import re

import pytest

from fixtures.copy import Copying
from snowmelt.errors import LoadFailed, LoadRefused
from snowmelt.load.expressions.datetime_templates import PATTERNS, REJECTED_PATTERNS
from snowmelt.load.expressions.function_translation import FUNCTIONS, REJECTED_FUNCTIONS
from snowmelt.schema.types import TableName
from support import copy_functions_page as page

FORMATTED = {"TO_CHAR", "TO_DATE", "TO_TIMESTAMP"}
EXAMPLES = [
    (sql, result)
    for lines in (*page.FUNCTIONS.values(), page.OPERATORS, page.CASTS)
    for _, sql, result in lines
]


def named(table: str) -> TableName:
    return TableName("DEMO", "PUBLIC", table)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def column_type(result: str) -> str:
    if result in {"true", "false"}:
        return "BOOLEAN"
    if result.startswith("0x"):
        return "BINARY(100)"
    return "ARRAY" if result.startswith("[") else "VARCHAR(100)"


def shown(value: object) -> str:
    """Format a value as on the page."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def computed(copying: Copying, examples: list[tuple[str, str]]) -> list[str]:
    """Compute expressions in one COPY of one record. Return the values as on the page."""
    types = [column_type(result) for _, result in examples]
    columns = ", ".join(f"c{n} {each}" for n, each in enumerate(types))
    copying.sql(f"CREATE OR REPLACE TABLE results (id NUMBER(9,0), {columns})")
    items = ", ".join(f"c{n} AS {sql}" for n, (sql, _) in enumerate(examples))
    path = copying.file("one.csv", "1\n")
    copying.copy(f"COPY results (id, {items}) FROM {path} FORCE")
    [row] = copying.house.read(named("RESULTS")).to_pylist()
    return [shown(row[f"C{n}"]) for n in range(len(examples))]


def test_every_function_operator_and_cast_of_the_page_gives_its_result(copying: Copying) -> None:
    found = computed(copying, EXAMPLES)
    wrong = [
        (sql, result, value)
        for (sql, result), value in zip(EXAMPLES, found, strict=True)
        if result != value
    ]
    assert wrong == []


def test_the_page_lists_every_function_and_no_other() -> None:
    listed = [name for lines in page.FUNCTIONS.values() for name, _, _ in lines]
    assert sorted(listed) == sorted(FUNCTIONS.keys() | FORMATTED)
    assert not REJECTED_FUNCTIONS.keys() & (FUNCTIONS.keys() | FORMATTED)
    assert sorted(name for name, _ in page.PATTERNS) == sorted(PATTERNS)


def test_every_pattern_is_written_as_the_page_says(copying: Copying) -> None:
    lines = [(pattern, text) for pattern, text in page.PATTERNS]
    lines += [(template, text) for _, template, text in page.MODIFIERS]
    examples = [
        (f"TO_CHAR({quoted(page.MOMENT)}::TIMESTAMP, {quoted(pattern)}) || '.'", f"{text}.")
        for pattern, text in lines
    ]
    assert computed(copying, examples) == [text for _, text in examples]


def test_every_pattern_is_read_as_the_page_says_by_expressions_and_by_format(
    copying: Copying,
) -> None:
    examples = [
        (f"TO_TIMESTAMP({quoted(text)}, {quoted(template)})", value)
        for _, template, text, value in page.READS
    ]
    assert computed(copying, examples) == [value for _, value in examples]
    copying.sql(
        "CREATE OR REPLACE TABLE formatted (id NUMBER(9,0), "
        + ", ".join(f"c{n} TIMESTAMP_NTZ(6)" for n in range(len(page.READS)))
        + ")"
    )
    items = ", ".join(f"c{n} FORMAT {quoted(each[1])}" for n, each in enumerate(page.READS))
    path = copying.file("read.csv", "1|" + "|".join(each[2] for each in page.READS) + "\n")
    copying.copy(f"COPY formatted (id, {items}) FROM {path} ABORT ON ERROR")
    [row] = copying.house.read(named("FORMATTED")).to_pylist()
    for n, (_, _, _, value) in enumerate(page.READS):
        assert re.sub(r"(\.\d*?)0+$", r"\1", str(row[f"C{n}"])) == value


def test_a_text_that_does_not_fit_its_template_is_rejected(copying: Copying) -> None:
    columns = ", ".join(f"c{n} TIMESTAMP_NTZ(6)" for n in range(len(page.MISREADS)))
    copying.sql(f"CREATE OR REPLACE TABLE formatted (id NUMBER(9,0), {columns})")
    items = ", ".join(f"c{n} FORMAT {quoted(each[0])}" for n, each in enumerate(page.MISREADS))
    records = []
    for n, (_, text, _) in enumerate(page.MISREADS):
        fields = [""] * len(page.MISREADS)
        fields[n] = text
        records.append("|".join([str(n), *fields]))
    path = copying.file("bad.csv", "\n".join(records) + "\n")
    copied = copying.copy(
        f"COPY formatted (id, {items}) FROM {path} REJECTED DATA AS TABLE rejects"
    )
    assert (copied.totals.rows, copied.totals.rejects) == (0, len(page.MISREADS))
    rejects = copying.house.read(named("REJECTS")).sort_by("ROW_NUMBER")
    assert rejects["COLUMN_NAME"].to_pylist() == [f"C{n}" for n in range(len(page.MISREADS))]
    assert all("Not of the format" in reason for reason in rejects["REJECTED_REASON"].to_pylist())


@pytest.mark.parametrize(("form", "text", "data"), page.BINARIES)
def test_binary_formats_take_the_manuals_texts(
    copying: Copying, form: str, text: str, data: str | None
) -> None:
    copying.sql("CREATE OR REPLACE TABLE bytes (b BINARY(5))")
    path = copying.file("bytes.csv", f"{text}\n")
    copied = copying.copy(f"COPY bytes (b FORMAT '{form}') FROM {path}")
    assert copied.totals.rejects == (1 if data is None else 0)
    rows = copying.house.read(named("BYTES"))
    assert rows["B"].to_pylist() == ([] if data is None else [bytes.fromhex(data)])


def refusal(copying: Copying, sql: str, path: str) -> str:
    """Return the reason why COPY rejects an expression, for a record `1|été` with columns N and W."""
    with pytest.raises((LoadRefused, LoadFailed)) as refused:
        copying.copy(f"COPY numbers (n, w FILLER VARCHAR, word AS {sql}) FROM {path}")
    return str(refused.value)


def test_a_function_that_is_not_vertica_s_is_refused_by_name(copying: Copying) -> None:
    path = copying.file("a.csv", "1|été\n")
    for name, reason in REJECTED_FUNCTIONS.items():
        found = refusal(copying, f"{name}(w)", path)
        assert f"function {name} is not available: {reason}" in found


def test_a_pattern_that_is_not_vertica_s_is_refused_by_name(copying: Copying) -> None:
    path = copying.file("a.csv", "1|été\n")
    copying.sql("CREATE OR REPLACE TABLE formatted (at DATE)")
    for pattern, reason in REJECTED_PATTERNS.items():
        expected = f"{pattern}: {reason}"
        assert expected in refusal(copying, f"TO_CHAR(SYSDATE, 'YYYY {pattern}')", path)
        assert expected in refusal(copying, f"TO_DATE(w, 'YYYY {pattern}')", path)
        with pytest.raises(LoadRefused, match=re.escape(expected)):
            copying.copy(f"COPY formatted (at FORMAT 'YYYY {pattern}') FROM {path}")


REFUSED = [
    ("LOWERR(w)", "the nearest is LOWER"),
    ("w ~ 'a'", "w ~ 'a' is not supported"),
    ("w = 1", "have no common type"),
    ("n / 2 || ''", "::NUMERIC(p,s)"),
    ("n::VARBINARY", "HEX_TO_BINARY"),
    ("n::JSON", "valid types are VARCHAR"),
    ("n = 1", "takes no BOOLEAN"),
    ("DATE '2024-01-01' + 1.5", "whole numbers of days"),
    ("INTERVAL '1 month'", "ADD_MONTHS"),
    ("TO_CHAR(SYSDATE, 'YYYY-MM-DDTHH24')", 'DD"T"HH24'),
    ("TO_CHAR(SYSDATE, 'Year YYYY')", "not one of Vertica's patterns"),
    ("TO_CHAR(SYSDATE, w)", "must be a text in quotes"),
    ("TO_DATE(w, 'DD.MM')", "it has no year"),
    ("TO_DATE(w, 'YYYY DDD MM')", "DDD is a date"),
    ("TO_DATE(w, 'YYYY HH24 AM')", "is HH12"),
    ("TO_DATE(w, 'YYYY Q')", "Q is not read"),
    ("TO_CHAR(1.5, '9.9')", "TO_CHAR of a number"),
    ("REGEXP_LIKE(w, '(?=a)')", "looking ahead"),
    ("REGEXP_LIKE(w, '(a)\\1')", "is not supported"),
    ("REGEXP_REPLACE(w, 'a*', '-')", "matches the empty text"),
    ("REGEXP_REPLACE(w, 'a', '\\1')", "groups"),
    ("REGEXP_REPLACE(w, 'a', '-', 2)", "the position"),
    ("DATE_PART('week', SYSDATE)", "WEEK"),
    ("w::!JSON", "valid types"),
    ("UPPER(w, 1)", "expected UPPER(VARCHAR)"),
    ("w->>'a'", "is not supported"),
    ("[1, 2]", "takes no ARRAY"),
]


def test_what_has_another_meaning_is_refused_with_what_to_write(copying: Copying) -> None:
    path = copying.file("a.csv", "1|été\n")
    for sql, reason in REFUSED:
        assert reason in refusal(copying, sql, path)


FAILS = [
    ("SUBSTR(w, 0)", "at least 1"),
    ("LEFT(w, -1)", "at least 0"),
    ("SPLIT_PART(w, ',', 0)", "at least 1"),
    ("LPAD(w, 9)", "other than ASCII"),
    ("INSTR(w, 'x')", "other than ASCII"),
    ("ROUND(2.5::FLOAT)::INT", "ends in .5"),
    ("'1_0'::INT", "invalid text for INTEGER: 1_0"),
    ("'1.5'::INT", "invalid text for INTEGER"),
    ("'0x1F'::INT", "invalid text for INTEGER"),
    ("'20210101123'::TIMESTAMP", "no date or timestamp"),
    ("'1234'::DATE", "no date or timestamp"),
    ("1.5::FLOAT", "::NUMERIC(p,s)"),
    ("(1 / (n - n))::INT", "division by zero"),
    ("LN(0)::INT", "LN is not defined"),
    ("SQRT(-1)::INT", "SQRT is not defined"),
    ("9223372036854775807 + n", "Overflow"),
    ("TO_DATE(w, 'YYYYMMDD')", "Not of the format"),
    ("CASE WHEN REGEXP_LIKE('a' || CHR(10), 'a$') THEN 'x' END", "ends with a newline"),
]


def test_a_value_whose_result_is_open_fails_with_what_to_write(copying: Copying) -> None:
    path = copying.file("a.csv", "1|été\n")
    for sql, reason in FAILS:
        assert reason in refusal(copying, sql, path)


def test_compact_dates_are_dates_and_no_count_since_1970(copying: Copying) -> None:
    copying.sql("CREATE TABLE dates (d DATE, t TIMESTAMP_NTZ(6))")
    path = copying.file("dates.csv", "19990506|20210101\n12345|2021-01-01\n2021-01-01|1609459200\n")
    copied = copying.copy(f"COPY dates FROM {path}")
    assert copied.totals.rejects == 2
    [row] = copying.house.read(named("DATES")).to_pylist()
    assert [str(row["D"]), str(row["T"])] == ["1999-05-06", "2021-01-01 00:00:00"]
