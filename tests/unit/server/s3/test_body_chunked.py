"""Bodies in chunks, against AWS's worked examples and cut at every place."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.body import AwsChunkedDecoder
from snowmelt.sigv4 import ChunkSignatureChain, derive_signing_key

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
A = b"a" * 65536


def signatures(seed: str) -> ChunkSignatureChain:
    scope = "20130524/us-east-1/s3/aws4_request"
    return ChunkSignatureChain(derive_signing_key(SECRET, scope), "20130524T000000Z", scope, seed)


def chunk(data: bytes, signature: str = "") -> bytes:
    extension = f";chunk-signature={signature}" if signature else ""
    return f"{len(data):x}{extension}\r\n".encode() + data + (b"\r\n" if data else b"")


SIGNED_SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
SIGNED = (
    chunk(A, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648")
    + chunk(A[:1024], "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497")
    + chunk(b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")
    + b"\r\n"
)
TRAILED_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
TRAILED = (
    chunk(A, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2")
    + chunk(A[:1024], "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7")
    + chunk(b"", "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992")
    + b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    + b"x-amz-trailer-signature:"
    + b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
)


def decode(decoder: AwsChunkedDecoder, body: bytes, step: int | None = None) -> bytes:
    step = step or max(len(body), 1)
    content = b""
    for start in range(0, len(body), step):
        content += b"".join(decoder.feed(memoryview(body)[start : start + step]))
    decoder.finish()
    return content


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 1, 7, 1000, 65_537])
def test_the_documented_examples_hold(step: int | None) -> None:
    decoder = AwsChunkedDecoder(signatures=signatures(SIGNED_SEED), with_trailers=False)
    assert decode(decoder, SIGNED, step) == A + A[:1024]
    decoder = AwsChunkedDecoder(signatures=signatures(TRAILED_SEED), with_trailers=True)
    assert decode(decoder, TRAILED, step) == A + A[:1024]
    assert decoder.trailers == {"x-amz-checksum-crc32c": "sOO8/Q=="}


@pytest.mark.parametrize("at", [90, 65_700, 66_650, 66_800, 66_900])
def test_a_changed_byte_does_not_hold(at: int) -> None:
    body = bytearray(TRAILED)
    body[at] ^= 1
    decoder = AwsChunkedDecoder(signatures=signatures(TRAILED_SEED), with_trailers=True)
    with pytest.raises(S3Error):
        decode(decoder, bytes(body))


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    step=st.integers(1, 60),
    upper=st.booleans(),
)
def test_content_is_the_same_however_it_is_cut(pieces: list[Any], step: int, upper: bool) -> None:
    body = b"".join(chunk(piece) for piece in [*pieces, b""]) + b"x-amz-checksum-crc32:AAAA\r\n\r\n"
    if upper:
        body = body.replace(b"a\r\n", b"A\r\n", 1) if body.startswith(b"a\r\n") else body
    decoder = AwsChunkedDecoder(signatures=None, with_trailers=True)
    assert decode(decoder, body, step) == b"".join(pieces)
    assert decoder.trailers == {"x-amz-checksum-crc32": "AAAA"}


@given(st.integers(0, 66_880))
def test_a_body_that_is_cut_short_is_never_whole(length: int) -> None:
    decoder = AwsChunkedDecoder(signatures=signatures(TRAILED_SEED), with_trailers=True)
    with pytest.raises(S3Error):
        decode(decoder, TRAILED[:length])


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nabc",
        b"\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"0\r\n\r\nmore",
        b"0\r\nno colon\r\n\r\n",
        b"1" * 11 + b"\r\n",
        b"3;" + b"x" * 5000,
        b"0\r\n" + b"".join(b"a%d:b\r\n" % n for n in range(9)) + b"\r\n",
    ],
)
def test_malformed_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(S3Error, match="malformed"):
        decode(AwsChunkedDecoder(signatures=None, with_trailers=True), body)


@given(st.binary(max_size=200))
def test_any_bytes_are_content_or_refused(body: bytes) -> None:
    with contextlib.suppress(S3Error):
        decode(AwsChunkedDecoder(signatures=None, with_trailers=True), body)
