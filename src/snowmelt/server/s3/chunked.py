"""Bodies in AWS's own chunks (`aws-chunked`), signed or not, with or without trailing headers.

No input or output: bytes in, bytes out, or the refusal. Source: AWS, "Signature calculations:
transferring payload in multiple chunks", and the same with trailing headers.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.s3.signing import sign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.server.s3.signing import Credentials

_EMPTY = hashlib.sha256().hexdigest()
_MOST_LINE_BYTES = 1024
_MOST_TRAILERS = 8
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Signatures:
    """The chain of signatures of a body: each signs its chunk and the signature before."""

    def __init__(self, credentials: Credentials, key: bytes) -> None:
        self._context = f"{credentials.stamp}\n{credentials.scope}"
        self._key = key
        self._previous = credentials.signature

    def check_chunk(self, digest: str, signature: str) -> None:
        """Let pass the next chunk, by its SHA-256.

        Raises:
            S3Refusal: The signature is another.
        """
        self._check(
            f"AWS4-HMAC-SHA256-PAYLOAD\n{self._context}\n{{}}\n{_EMPTY}\n{digest}", signature
        )

    def check_trailers(self, text: str, signature: str) -> None:
        """Let pass the trailing headers, as lines that end in a line feed.

        Raises:
            S3Refusal: The signature is another.
        """
        digest = hashlib.sha256(text.encode("latin-1")).hexdigest()
        self._check(f"AWS4-HMAC-SHA256-TRAILER\n{self._context}\n{{}}\n{digest}", signature)

    def _check(self, text: str, signature: str) -> None:
        expected = sign(self._key, text.format(self._previous)).hex()
        if not hmac.compare_digest(expected, signature):
            raise S3Refusal("SignatureDoesNotMatch", "The signature of a chunk does not match.")
        self._previous = expected


class Decoder:
    """Takes a body apart as it arrives; what it yields counts only after `finish`."""

    def __init__(self, *, signatures: Signatures | None, with_trailers: bool) -> None:
        self.trailers: dict[str, str] = {}
        self._signatures = signatures
        self._with_trailers = with_trailers
        self._line = bytearray()
        self._left = 0
        self._signature = ""
        self._hash = hashlib.sha256()
        self._state = "size"
        self._trailer_text = ""

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """Yield the content in the next bytes of the body.

        Raises:
            S3Refusal: The chunks are malformed, or a signature does not match.
        """
        while data:
            if self._state == "data":
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                if self._signatures is not None:
                    self._hash.update(piece)
                if not self._left:
                    self._end_chunk()
                    self._state = "gap"
                yield piece
                continue
            line, data = self._next_line(data)
            if line is not None:
                self._take_line(line)

    def finish(self) -> None:
        """Let pass a body that was complete.

        Raises:
            S3Refusal: It was cut short.
        """
        if self._state != "done":
            raise S3Refusal("IncompleteBody", "The body ends within its chunks.")

    def _next_line(self, data: memoryview) -> tuple[str | None, memoryview]:
        if self._state == "done":
            raise _malformed("something follows the last chunk")
        end = bytes(data[: _MOST_LINE_BYTES + 2]).find(b"\n")
        if end < 0:
            self._line += data
            if len(self._line) > _MOST_LINE_BYTES:
                raise _malformed("a line is too long")
            return None, data[:0]
        self._line += data[: end + 1]
        if not self._line.endswith(b"\r\n") or len(self._line) > _MOST_LINE_BYTES:
            raise _malformed("a line does not end in CR LF")
        line = self._line[:-2].decode("latin-1")
        self._line.clear()
        return line, data[end + 1 :]

    def _take_line(self, line: str) -> None:
        if self._state == "size":
            self._begin_chunk(line)
        elif self._state == "gap":
            if line:
                raise _malformed("a chunk is longer than it says")
            self._state = "size"
        elif line:
            self._take_trailer(line)
        else:
            self._end()

    def _begin_chunk(self, line: str) -> None:
        size, _, extension = line.partition(";")
        if not 0 < len(size) <= 10 or any(each not in "0123456789abcdefABCDEF" for each in size):
            raise _malformed("a chunk does not begin with its size")
        self._left = int(size, 16)
        self._signature = extension.partition("chunk-signature=")[2]
        self._hash = hashlib.sha256()
        if self._left:
            self._state = "data"
        else:
            self._end_chunk()
            self._state = "trailers"

    def _end_chunk(self) -> None:
        if self._signatures is not None:
            self._signatures.check_chunk(self._hash.hexdigest(), self._signature)

    def _take_trailer(self, line: str) -> None:
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or not self._with_trailers or len(self.trailers) >= _MOST_TRAILERS:
            raise _malformed("there is an unexpected trailing header")
        self.trailers[name] = value.strip()
        if name != _TRAILER_SIGNATURE:
            self._trailer_text += f"{name}:{value.strip()}\n"

    def _end(self) -> None:
        signature = self.trailers.pop(_TRAILER_SIGNATURE, "")
        if self._signatures is not None and self._with_trailers:
            self._signatures.check_trailers(self._trailer_text, signature)
        self._state = "done"


def _malformed(reason: str) -> S3Refusal:
    return S3Refusal("InvalidRequest", f"The chunks of the body are malformed: {reason}.")
