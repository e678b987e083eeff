"""What is read at once is what the exact reader reads; every other form is left to it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.ingest.rows.columnar_reader import parse_timestamps


def read(texts: list[Any], *, instants: bool = False) -> Any:
    try:
        return parse_timestamps(
            pa.chunked_array([texts[:1], texts[1:]], pa.string()), are_utc=instants
        )
    except pa.ArrowException:
        return None


@given(
    st.lists(
        st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(2999, 12, 31, 23, 59, 59, 999_999))
        | st.none(),
        min_size=1,
    )
)
def test_moments_are_what_python_reads(given: list[Any]) -> None:
    texts = [None if each is None else each.isoformat() for each in given]
    assert read(texts).to_pylist() == given
    assert read([each and each.replace("T", " ") for each in texts]).to_pylist() == given
    zoned = [None if each is None else each + "Z" for each in texts]
    in_utc = [None if each is None else each.replace(tzinfo=dt.UTC) for each in given]
    assert read(zoned, instants=True).to_pylist() == in_utc
    assert read(zoned) is None or not any(zoned)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21",
        "2026-11-21T10",
        "2026-11-21T10:00",
        "2026-11-21_10:00:00",
        "2026-11-21T10:00:0 ",
        "2026-11-21T10:00:00.",
        "2026-11-21T10:00:00.1234567",
        "2026-11-21T10:00:00.12a",
        "2026-11-21T10:00:00,12",
        "2026-11-21T10:00:00.1Z",
        "2026-11-21T10:00:00+05:30",
        "2026-11-21T10:00:00.1+05",
        "2026-11-21T24:00:00",
        "2026-11-21T10:60:00",
        "2026-11-21T10:00:60",
        "2026-02-29T10:00:00",
        "2026-13-01T10:00:00",
        "+026-11-21T10:00:00",
        " 026-11-21T10:00:00",
        "-026-11-21T10:00:00",
        "0999-11-21T10:00:00",
        "3000-01-01T00:00:00",
        "2026-11-21T+1:00:00",
        "2026-11-21T1\u0661:00:0",
        "2026-11-21T10:00:00.\u0661",
    ],
)
def test_other_forms_are_left_to_the_exact_reader(text: str) -> None:
    plain = "2026-11-21T10:00:00"
    assert read([plain, text]) is None
    assert read([text, plain]) is None
    assert read([text + "Z", plain + "Z"], instants=True) is None
    assert read([plain + "Z", plain], instants=True) is None
