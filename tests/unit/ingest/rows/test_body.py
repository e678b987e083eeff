from __future__ import annotations

import gzip

import pyarrow as pa
import pytest

from snowmelt.errors import BodyTooLarge, BodyUnreadable
from snowmelt.ingest.rows.body import decompress_body, parse_json_lines

BODY = b'{"id":1}\n' * 1000
ZSTD = pa.compress(BODY, "zstd", asbytes=True)


@pytest.mark.parametrize("told", [0, len(BODY), len(BODY) - 1, len(BODY) + 1, 10**6])
def test_what_the_sender_says_of_the_length_changes_nothing(told: int) -> None:
    for encoding, body in (("zstd", ZSTD), ("gzip", gzip.compress(BODY)), ("", BODY)):
        assert decompress_body(body, encoding, len(BODY), told) == BODY


@pytest.mark.parametrize("told", [0, 100, len(BODY)])
def test_no_more_comes_out_than_may(told: int) -> None:
    with pytest.raises(BodyTooLarge):
        decompress_body(ZSTD, "zstd", len(BODY) - 1, told)
    with pytest.raises(BodyUnreadable):
        decompress_body(ZSTD[:-5] + b"     ", "zstd", len(BODY), told)


def test_a_row_is_a_line_whatever_else_is_in_the_body() -> None:
    for other in (b"", b"nonsense\n"):
        lines = parse_json_lines(
            b'{"a":1}\n\n{"a":2}{"a":3}\r\n{"a":\n4}\n{"a":5}\r{"a":6}\n{"a":7}' + b"\n" + other
        )
        assert lines.rows == [{"a": 1}, {"a": 7}]
        assert list(lines.errors_by_line) == [1, 2, 3, 4, *([6] if other else [])]
