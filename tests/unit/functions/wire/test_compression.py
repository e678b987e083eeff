"""Bodies are compressed and checked as services really do it."""

from __future__ import annotations

import gzip
import zlib

import pytest

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.wire.compression import accepted, decoded, encoded, md5, md5_matches

TEXT = b'{"data":[[0,"a"]]}' * 100
PACKED = gzip.compress(TEXT)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_encoded_is_decoded(encoding):
    assert decoded(encoded(TEXT, encoding), encoding, limit=10**6) == TEXT


def test_raw_deflate_and_several_members_are_taken():
    raw = zlib.compressobj(wbits=-15)
    assert decoded(raw.compress(TEXT) + raw.flush(), "deflate", limit=10**6) == TEXT
    assert decoded(gzip.compress(TEXT) * 2, "gzip", limit=10**6) == TEXT * 2


def test_a_gateway_that_decompressed_and_left_the_header_is_believed_unless_strict():
    assert decoded(TEXT, "gzip", limit=10**6) == TEXT
    assert decoded(TEXT, "deflate", limit=10**6) == TEXT
    with pytest.raises(BatchInvalid):
        decoded(TEXT, "gzip", limit=10**6, strict=True)


def test_a_bomb_stays_small():
    bomb = gzip.compress(bytes(10**7))
    with pytest.raises(BatchTooLarge):
        decoded(bomb, "gzip", limit=10**5)


@pytest.mark.parametrize("body", [PACKED[:-9], PACKED[:20] + b"xx"], ids=["short", "wrong"])
def test_damaged_bytes_are_refused(body):
    with pytest.raises(BatchInvalid):
        decoded(body, "gzip", limit=10**6)


def test_an_unknown_encoding_is_named():
    with pytest.raises(BatchInvalid, match="'br'"):
        decoded(TEXT, "br", limit=10**6)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate, gzip;q=0", "deflate"),
        ("br", None),
        (None, None),
        ("identity", None),
    ],
)
def test_a_reply_is_compressed_as_asked(header, encoding):
    assert accepted(header) == encoding


def test_a_checksum_of_text_or_of_compressed_bytes_is_right_and_hex_is_not():
    packed = encoded(TEXT, "gzip")
    assert md5_matches(md5(TEXT), packed, TEXT)
    assert md5_matches(md5(packed), packed, TEXT)
    assert md5_matches(str(md5(TEXT).encode()), packed, TEXT)
    assert not md5_matches(str(md5(b"other").encode()), packed, TEXT)
    assert not md5_matches(md5(b"other"), packed, TEXT)
    assert not md5_matches("d41d8cd98f00b204e9800998ecf8427e!", packed, TEXT)
