"""Receive, decode, hash and verify request bodies of the S3 endpoint as they arrive.

Reading, hashing and writing overlap. Includes the decoder of AWS chunked bodies (`aws-chunked`),
which does no input or output.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from snowmelt.buckets import checksums
from snowmelt.buckets.checksums import Checksum, Hasher
from snowmelt.buckets.errors import S3Error
from snowmelt.server.s3.request_context import AuthorizedS3Request
from snowmelt.sigv4 import ALGORITHM, UNSIGNED_PAYLOAD, ChunkSignatureChain

if TYPE_CHECKING:
    from starlette.types import Message, Receive

    from snowmelt.buckets.bucket import ObjectUpload

# --- Decoder of AWS chunked bodies (`aws-chunked`), signed or not, with or without trailing headers.
#
# Does no input or output. Source: AWS, "Signature calculations: transferring payload in multiple
# chunks", and the same with trailing headers.

_MAX_LINE_BYTES = 1024
_MAX_TRAILERS = 8
_TRAILER_SIGNATURE_HEADER = "x-amz-trailer-signature"


class AwsChunkedDecoder:
    """Incremental decoder of a chunked body. The output is only verified after `finish`."""

    def __init__(self, *, signatures: ChunkSignatureChain | None, with_trailers: bool) -> None:
        self.trailers: dict[str, str] = {}
        self._signatures = signatures
        self._with_trailers = with_trailers
        self._line = bytearray()
        self._remaining_bytes = 0
        self._signature = ""
        self._hash = hashlib.sha256()
        self._state = "size"
        self._trailer_text = ""

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """Decode the next bytes of the body, and yield their content.

        Raises:
            S3Error: If the chunks are malformed, or a signature does not match.
        """
        while data:
            if self._state == "data":
                piece, data = data[: self._remaining_bytes], data[self._remaining_bytes :]
                self._remaining_bytes -= len(piece)
                if self._signatures is not None:
                    self._hash.update(piece)
                if not self._remaining_bytes:
                    self._end_chunk()
                    self._state = "gap"
                yield piece
                continue
            line, data = self._read_line(data)
            if line is not None:
                self._handle_line(line)

    def finish(self) -> None:
        """Verify that the body was complete.

        Raises:
            S3Error: If the body was truncated.
        """
        if self._state != "done":
            raise S3Error("IncompleteBody", "The body ends within its chunks.")

    def _read_line(self, data: memoryview) -> tuple[str | None, memoryview]:
        if self._state == "done":
            raise _malformed_error("there is data after the last chunk")
        end = bytes(data[: _MAX_LINE_BYTES + 2]).find(b"\n")
        if end < 0:
            self._line += data
            if len(self._line) > _MAX_LINE_BYTES:
                raise _malformed_error("a line is too long")
            return None, data[:0]
        self._line += data[: end + 1]
        if not self._line.endswith(b"\r\n") or len(self._line) > _MAX_LINE_BYTES:
            raise _malformed_error("a line does not end in CR LF")
        line = self._line[:-2].decode("latin-1")
        self._line.clear()
        return line, data[end + 1 :]

    def _handle_line(self, line: str) -> None:
        if self._state == "size":
            self._begin_chunk(line)
        elif self._state == "gap":
            if line:
                raise _malformed_error("a chunk is longer than its declared size")
            self._state = "size"
        elif line:
            self._add_trailer(line)
        else:
            self._finish_trailers()

    def _begin_chunk(self, line: str) -> None:
        size, _, extension = line.partition(";")
        if not 0 < len(size) <= 10 or any(each not in "0123456789abcdefABCDEF" for each in size):
            raise _malformed_error("a chunk does not begin with its size")
        self._remaining_bytes = int(size, 16)
        self._signature = extension.partition("chunk-signature=")[2]
        self._hash = hashlib.sha256()
        if self._remaining_bytes:
            self._state = "data"
        else:
            self._end_chunk()
            self._state = "trailers"

    def _end_chunk(self) -> None:
        if self._signatures is not None:
            expected = self._signatures.sign_chunk(self._hash.hexdigest())
            _verify_chunk_signature(expected, self._signature)

    def _add_trailer(self, line: str) -> None:
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or not self._with_trailers or len(self.trailers) >= _MAX_TRAILERS:
            raise _malformed_error("there is an unexpected trailing header")
        self.trailers[name] = value.strip()
        if name != _TRAILER_SIGNATURE_HEADER:
            self._trailer_text += f"{name}:{value.strip()}\n"

    def _finish_trailers(self) -> None:
        signature = self.trailers.pop(_TRAILER_SIGNATURE_HEADER, "")
        if self._signatures is not None and self._with_trailers:
            expected = self._signatures.sign_trailers(self._trailer_text)
            _verify_chunk_signature(expected, signature)
        self._state = "done"


def _verify_chunk_signature(expected: str, signature: str) -> None:
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not match.")


def _malformed_error(reason: str) -> S3Error:
    return S3Error("InvalidRequest", f"The chunks of the body are malformed: {reason}.")


# Bytes per unit of work of a thread. At this size, the cost of thread switches is negligible.
_BATCH_BYTES = 1024 * 1024
# Below this size, a second thread for hashing costs more than it saves.
_MIN_PARALLEL_HASH_BYTES = 128 * 1024
# Maximum pause of a client while it sends a body, in seconds.
BODY_IDLE_TIMEOUT_S = 60.0
_SIGNED_CHUNKS = f"STREAMING-{ALGORITHM}-PAYLOAD"
_HAS_TRAILERS_BY_MODE = {
    _SIGNED_CHUNKS: False,
    f"{_SIGNED_CHUNKS}-TRAILER": True,
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": True,
}
_CHECKSUM_HEADER_PREFIX = "x-amz-checksum-"


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """Size and digests of a received body. `checksum` was verified if the client sent one."""

    size_bytes: int
    md5: str
    checksum: Checksum | None


class BodyReceiver:
    """Decodes a body, writes its content to an upload, and verifies sizes and digests.

    The methods block and must not be called concurrently.
    """

    def __init__(
        self, call: AuthorizedS3Request, upload: ObjectUpload, *, algorithm: str | None
    ) -> None:
        """Create a receiver.

        Args:
            call: The request. Its headers describe the encoding of the body.
            upload: Receives the content.
            algorithm: Checksum to compute even if the client sends none.
        """
        headers = call.headers
        self._upload = upload
        self._hash_threads = call.components.hash_threads
        self._declared_size = _parse_size_header(headers, "x-amz-decoded-content-length")
        self._declared_md5 = _parse_content_md5(headers)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size = 0
        self._decoder = _make_chunked_decoder(call)
        self._sha256 = None if self._decoder is not None else _declared_sha256(call)
        self._checksum = _declared_checksum(headers)
        self._trailer = headers.get("x-amz-trailer", "").strip().lower()
        self._algorithm = _resolve_checksum_algorithm(headers, self._checksum) or algorithm
        self._hashes: dict[str, Hasher] = {}
        if self._algorithm is not None:
            self._hashes[self._algorithm] = checksums.new_hasher(self._algorithm)
        if self._sha256 is not None:
            self._hashes.setdefault("SHA256", checksums.new_hasher("SHA256"))

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the body.

        Raises:
            S3Error: If the body does not match its headers.
        """
        view = memoryview(data)
        pieces = [view] if self._decoder is None else list(self._decoder.feed(view))
        if len(data) < _MIN_PARALLEL_HASH_BYTES:
            self._hash_md5(pieces)
            self._write_content(pieces)
            return
        apart = self._hash_threads.submit(self._hash_md5, pieces)
        try:
            self._write_content(pieces)
        finally:
            apart.result()

    def finish(self) -> ReceivedBody:
        """Verify the whole body.

        Raises:
            S3Error: If a size, digest or checksum does not match.
        """
        if self._decoder is not None:
            self._decoder.finish()
            self._apply_trailers(self._decoder.trailers)
        if self._declared_size is not None and self._declared_size != self._size:
            raise S3Error("IncompleteBody")
        if self._sha256 is not None and self._hashes["SHA256"].digest().hex() != self._sha256:
            _raise_sha256_mismatch(self._sha256, self._hashes["SHA256"].digest().hex())
        if self._declared_md5 is not None and self._declared_md5 != self._md5.digest():
            _raise_md5_mismatch(self._declared_md5, self._md5.digest())
        return ReceivedBody(self._size, self._md5.hexdigest(), self._verify_checksum())

    def _apply_trailers(self, trailers: Mapping[str, str]) -> None:
        if self._trailer and self._trailer not in trailers:
            raise S3Error("InvalidRequest", f"The trailing header {self._trailer} is missing.")
        self._checksum = _declared_checksum(trailers) or self._checksum

    def _verify_checksum(self) -> Checksum | None:
        if self._algorithm is None:
            return None
        found = checksums.to_checksum(self._algorithm, self._hashes[self._algorithm])
        if self._checksum is not None and self._checksum != found:
            raise S3Error(
                "BadDigest",
                f"The {self._checksum.algorithm} you specified did not match the calculated "
                "checksum.",
            )
        return found

    def _write_content(self, slices: Iterable[memoryview]) -> None:
        for piece in slices:
            self._size += len(piece)
            self._upload.write(piece)
            for hashing in self._hashes.values():
                hashing.update(piece)

    def _hash_md5(self, slices: Iterable[memoryview]) -> None:
        for piece in slices:
            self._md5.update(piece)


async def receive_into(
    receive: Receive, receiver: BodyReceiver, threads: Executor, *, max_bytes: int
) -> None:
    """Read a complete body into a receiver. Receives one batch while the previous one is processed.

    Raises:
        S3Error: If the client disconnects, times out, or sends more than `max_bytes` bytes.
    """
    loop = asyncio.get_running_loop()
    working: asyncio.Future[None] | None = None
    batch: list[bytes] = []
    waiting = size = 0
    more = True
    try:
        while more:
            message = await _receive_message(receive, BODY_IDLE_TIMEOUT_S)
            body = message.get("body", b"")
            more = message.get("more_body", False)
            waiting += len(body)
            size += len(body)
            batch.append(body)
            if size > max_bytes:
                raise S3Error("EntityTooLarge", MaxSizeAllowed=max_bytes)
            if waiting >= _BATCH_BYTES or not more:
                if working is not None:
                    await working
                data = batch[0] if len(batch) == 1 else b"".join(batch)
                working = loop.run_in_executor(threads, receiver.feed, data)
                batch, waiting = [], 0
    finally:
        if working is not None:
            await working


async def receive_small_body(
    receive: Receive, *, max_bytes: int, idle_timeout_s: float = BODY_IDLE_TIMEOUT_S
) -> bytes:
    """Read a small body.

    Raises:
        S3Error: If the client disconnects, sends nothing for `idle_timeout_s` seconds, or sends more
            than `max_bytes` bytes.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await _receive_message(receive, idle_timeout_s)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise S3Error("EntityTooLarge", MaxSizeAllowed=max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


class InMemoryBody:
    """In-memory content of a small body."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self.content += data


def decode_and_verify_body(call: AuthorizedS3Request, body: bytes) -> bytes:
    """Decode a small body and verify it against its headers.

    Raises:
        S3Error: If the body does not match its headers.
    """
    kept = InMemoryBody()
    payload = BodyReceiver(call, kept, algorithm=None)  # type: ignore[arg-type]
    payload.feed(body)
    payload.finish()
    return bytes(kept.content)


def verify_signed_body(call: AuthorizedS3Request, body: bytes) -> bytes:
    """Verify a small body only against its signed digest, and return it.

    The checksum headers of such a request describe another object.

    Raises:
        S3Error: If the body does not match, or is chunked.
    """
    if _make_chunked_decoder(call) is not None:
        raise S3Error("NotImplemented", "This body must not be chunked.")
    promised = _declared_sha256(call)
    found = hashlib.sha256(body).hexdigest()
    if promised is not None and found != promised:
        _raise_sha256_mismatch(promised, found)
    md5 = _parse_content_md5(call.headers)
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    if md5 is not None and md5 != digest:
        _raise_md5_mismatch(md5, digest)
    return body


def _raise_md5_mismatch(expected: bytes, found: bytes) -> NoReturn:
    raise S3Error(
        "BadDigest",
        "The Content-MD5 you specified did not match what we received.",
        ExpectedDigest=base64.b64encode(expected).decode(),
        CalculatedDigest=base64.b64encode(found).decode(),
    )


def _raise_sha256_mismatch(expected: str, found: str) -> NoReturn:
    raise S3Error(
        "XAmzContentSHA256Mismatch",
        ClientComputedContentSHA256=expected,
        S3ComputedContentSHA256=found,
    )


def _make_chunked_decoder(call: AuthorizedS3Request) -> AwsChunkedDecoder | None:
    credentials = call.identity.credentials
    mode = call.headers.get("x-amz-content-sha256", UNSIGNED_PAYLOAD)
    if mode not in _HAS_TRAILERS_BY_MODE:
        if mode.startswith("STREAMING-"):
            raise S3Error("InvalidRequest", f"Payloads of kind {mode[:60]} are not supported.")
        return None
    if "x-amz-decoded-content-length" not in call.headers:
        raise S3Error("MissingContentLength", "x-amz-decoded-content-length is needed.")
    signatures = None
    if mode.startswith(_SIGNED_CHUNKS) and credentials is not None:
        signatures = ChunkSignatureChain(
            call.identity.signing_key,
            credentials.amz_date,
            credentials.credential_scope,
            credentials.signature,
        )
    return AwsChunkedDecoder(signatures=signatures, with_trailers=_HAS_TRAILERS_BY_MODE[mode])


def _declared_sha256(call: AuthorizedS3Request) -> str | None:
    credentials = call.identity.credentials
    if credentials is None or credentials.payload_hash == UNSIGNED_PAYLOAD:
        return None
    if len(credentials.payload_hash) != 64:
        raise S3Error(
            "InvalidArgument",
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING value or a SHA-256.",
        )
    return credentials.payload_hash.lower()


def _declared_checksum(headers: Mapping[str, str]) -> Checksum | None:
    found = [
        checksums.parse_client_checksum(
            algorithm, headers[_CHECKSUM_HEADER_PREFIX + algorithm.lower()]
        )
        for algorithm in checksums.CHECKSUM_ALGORITHMS
        if _CHECKSUM_HEADER_PREFIX + algorithm.lower() in headers
    ]
    return require_single_checksum(found)


def require_single_checksum(found: Sequence[Checksum]) -> Checksum | None:
    """Return the checksum of a request, or None if it has none.

    Raises:
        S3Error: If it has several.
    """
    if len(found) > 1:
        raise S3Error(
            "InvalidRequest",
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
        )
    return found[0] if found else None


def declared_checksum_algorithm(headers: Mapping[str, str]) -> str | None:
    """Return the checksum algorithm that a request declares, or None.

    Raises:
        S3Error: If the algorithm is unknown, or several are declared.
    """
    return _resolve_checksum_algorithm(headers, _declared_checksum(headers))


def _resolve_checksum_algorithm(
    headers: Mapping[str, str], checksum: Checksum | None
) -> str | None:
    trailer = headers.get("x-amz-trailer", "").strip().lower()
    trailing = (
        checksums.parse_checksum_algorithm(trailer.removeprefix(_CHECKSUM_HEADER_PREFIX))
        if trailer
        else None
    )
    announced = checksums.parse_checksum_algorithm(headers.get("x-amz-sdk-checksum-algorithm"))
    sent = trailing if checksum is None else checksum.algorithm
    if sent is not None and announced not in {None, sent}:
        raise S3Error("InvalidRequest", "Value for x-amz-sdk-checksum-algorithm header is invalid.")
    return sent or announced


def _parse_content_md5(headers: Mapping[str, str]) -> bytes | None:
    text = headers.get("content-md5")
    if text is None:
        return None
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != 16:
        raise S3Error("InvalidDigest")
    return digest


def _parse_size_header(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise S3Error("InvalidArgument", f"{name} must be a number of bytes.")
    return int(text)


async def _receive_message(receive: Receive, idle_timeout_s: float) -> Message:
    try:
        async with asyncio.timeout(idle_timeout_s):
            message = await receive()
    except TimeoutError:
        raise S3Error("RequestTimeout") from None
    if message["type"] == "http.disconnect":
        raise S3Error("IncompleteBody")
    return message
