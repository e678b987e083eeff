"""Names and padding of blobs are the specification's."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.blob.encryption import make_blob_path, padded_length, parse_blob_path
from snowmelt.errors import BlobInvalid

CAPTURED = "2026/11/21/1/40/totwo8_abc_4711_18_0.bdec"


def test_the_captured_name_is_understood_and_made_again() -> None:
    name = parse_blob_path(CAPTURED)
    assert name.created_at == dt.datetime(2026, 11, 21, 1, 40, 56, tzinfo=dt.UTC)
    assert (name.client_prefix, name.thread_id, name.counter) == ("abc_4711", 18, 0)
    assert make_blob_path(name.created_at, "abc_4711", 18, 0) == CAPTURED


def test_paths_are_in_utc_without_zero_padding() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    at = dt.datetime(2026, 3, 4, 9, 5, 0, tzinfo=tokyo)
    assert make_blob_path(at, "p", 1, 2).startswith("2026/3/4/0/5/")


@pytest.mark.slow
@given(
    at=st.datetimes(min_value=dt.datetime(1971, 1, 1), timezones=st.just(dt.UTC)),
    prefix=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", fullmatch=True),
    thread=st.integers(0, 2**63 - 1),
    counter=st.integers(0, 2**63 - 1),
)
def test_a_name_taken_apart_is_what_made_it(
    at: dt.datetime, prefix: str, thread: int, counter: int
) -> None:
    name = parse_blob_path(make_blob_path(at, prefix, thread, counter))
    assert name.created_at == at.replace(microsecond=0)
    assert (name.client_prefix, name.thread_id, name.counter) == (prefix, thread, counter)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "totwo8_abc_4711_18_0.bdec",
        "/" + CAPTURED,
        "../" + CAPTURED,
        "abc/" + CAPTURED,
        CAPTURED + "\n",
        CAPTURED + "\0",
        CAPTURED.replace("/21/", "/../"),
        CAPTURED.replace("/", "\\"),
        CAPTURED.replace(".bdec", ".parquet"),
        CAPTURED.replace(".bdec", ".BDEC"),
        CAPTURED.replace("_4711_18_0", "_18"),
        CAPTURED.replace("_0.bdec", "_-1.bdec"),
        CAPTURED.replace("_0.bdec", "_٣.bdec"),
        CAPTURED.replace("/11/", "/13/"),
        CAPTURED.replace("totwo8", "zzzzzzzzz"),
        CAPTURED.replace("abc_4711", "a" * 600),
        CAPTURED.replace("abc_4711", "a/../b"),
    ],
)
def test_anything_else_is_no_blob(path: str) -> None:
    with pytest.raises(BlobInvalid):
        parse_blob_path(path)


@given(st.text())
def test_any_text_is_a_name_or_refused(path: str) -> None:
    with pytest.raises(BlobInvalid):
        parse_blob_path(path)


@pytest.mark.parametrize(("length", "padded"), [(0, 16), (1, 16), (15, 16), (16, 32), (17, 32)])
def test_padding_is_one_to_sixteen_bytes(length: int, padded: int) -> None:
    assert padded_length(length) == padded
