"""Bodies are compressed and checked as services really do it."""

from __future__ import annotations

import gzip
import zlib

import pytest

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.wire.compression import (
    compress,
    compute_content_md5,
    decompress,
    is_content_md5_valid,
    negotiate_encoding,
)

TEXT = b'{"data":[[0,"a"]]}' * 100
PACKED = gzip.compress(TEXT)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_encoded_is_decoded(encoding):
    assert decompress(compress(TEXT, encoding), encoding, max_bytes=10**6) == TEXT


def test_raw_deflate_and_several_members_are_taken():
    raw = zlib.compressobj(wbits=-15)
    assert decompress(raw.compress(TEXT) + raw.flush(), "deflate", max_bytes=10**6) == TEXT
    assert decompress(gzip.compress(TEXT) * 2, "gzip", max_bytes=10**6) == TEXT * 2


def test_bytes_after_a_body_are_refused():
    for packed in (zlib.compress(TEXT), zlib.compress(TEXT)[2:-4]):
        with pytest.raises(BatchInvalid, match="bytes follow"):
            decompress(packed + b"more", "deflate", max_bytes=10**6)


def test_a_gateway_that_decompressed_and_left_the_header_is_believed_unless_strict():
    assert decompress(TEXT, "gzip", max_bytes=10**6) == TEXT
    assert decompress(TEXT, "deflate", max_bytes=10**6) == TEXT
    with pytest.raises(BatchInvalid):
        decompress(TEXT, "gzip", max_bytes=10**6, strict=True)


def test_a_bomb_stays_small():
    bomb = gzip.compress(bytes(10**7))
    with pytest.raises(BatchTooLarge):
        decompress(bomb, "gzip", max_bytes=10**5)


@pytest.mark.parametrize("body", [PACKED[:-9], PACKED[:20] + b"xx"], ids=["short", "wrong"])
def test_damaged_bytes_are_refused(body):
    with pytest.raises(BatchInvalid):
        decompress(body, "gzip", max_bytes=10**6)


def test_an_unknown_encoding_is_named():
    with pytest.raises(BatchInvalid, match="'br'"):
        decompress(TEXT, "br", max_bytes=10**6)


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
    assert negotiate_encoding(header) == encoding


def test_a_checksum_of_text_or_of_compressed_bytes_is_right_and_hex_is_not():
    packed = compress(TEXT, "gzip")
    assert is_content_md5_valid(compute_content_md5(TEXT), packed, TEXT)
    assert is_content_md5_valid(compute_content_md5(packed), packed, TEXT)
    assert is_content_md5_valid(str(compute_content_md5(TEXT).encode()), packed, TEXT)
    assert not is_content_md5_valid(str(compute_content_md5(b"other").encode()), packed, TEXT)
    assert not is_content_md5_valid(compute_content_md5(b"other"), packed, TEXT)
    assert not is_content_md5_valid("d41d8cd98f00b204e9800998ecf8427e!", packed, TEXT)
