"""`SELECT *` says the same whether records are copied, written as columns or one by one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import EngineSettings
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvInput, CsvOutput, HeaderMode, JsonOutput, SelectRequest

_PLAIN = ["", "1", "-2.50", "a b", "é", "\x07\t", "c\\d", "\r", "x" * 70, "|", "\\,", "\\"]
_QUOTED = ['"q"', '"q,x"', '"a""b"', '""', '"|"', "'s'"]
_FIELDS = st.sampled_from([*_PLAIN, *_QUOTED])
_RECORDS = st.lists(_FIELDS, min_size=1, max_size=4).map(",".join)
_OUTPUTS = st.sampled_from(
    [
        JsonOutput(),
        JsonOutput(record_delimiter=b"\x1e"),
        CsvOutput(),
        CsvOutput(quote_always=True),
        CsvOutput(field_delimiter=b"|"),
        CsvOutput(quote=b"'", escape=b"\\", record_delimiter=b"\r\n"),
        CsvOutput(field_delimiter=b"::", quote=b"<<"),
    ]
)


def answer(request: SelectRequest, data: bytes, **limits: int) -> tuple[bytes, str | None]:
    execution = open_local_select(request, io.BytesIO(data), settings=EngineSettings(**limits))
    parts: list[bytes] = []
    try:
        parts += execution.stream_payloads()
    except SelectError as error:
        return b"".join(parts), str(error)
    return b"".join(parts), None


@pytest.mark.slow
@given(
    st.lists(_RECORDS, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=40, max_size=120),
    st.sampled_from(list(Dialect)),
    st.sampled_from(list(HeaderMode)),
    _OUTPUTS,
    st.sampled_from(["", " where _1 <> '1'"]),
)
def test_many_records_are_written_as_few_are(
    kinds: list[Any],
    places: list[Any],
    dialect: Any,
    header: Any,
    output: CsvOutput | JsonOutput,
    where: Any,
) -> None:
    data = "".join(kinds[place % len(kinds)] + "\n" for place in places).encode()
    escape = b"\\" if dialect.is_ceph else b'"'
    options = CsvInput(header=header, escape=escape)
    request = SelectRequest(f"select * from s3object{where}", options, output, dialect=dialect)
    try:
        few = answer(request, data, block_bytes=64)
    except SelectError:
        return
    assert answer(request, data) == few


@pytest.mark.parametrize("output", [CsvOutput(), CsvOutput(field_delimiter=b"|"), JsonOutput()])
def test_fields_quoted_without_need_are_the_same_fields(output: CsvOutput | JsonOutput) -> None:
    plain = "".join(f"{n},b{n},,{n / 4}\n" for n in range(5000))
    quoted = "".join(f'"{n}","b{n}","","{n / 4}"\n' for n in range(5000))
    request = SelectRequest("select * from s3object", output=output)
    assert answer(request, quoted.encode()) == answer(request, plain.encode())
