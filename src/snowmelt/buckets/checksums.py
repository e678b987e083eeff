"""Checksums of objects with S3's algorithms, and combination of the checksums of parts.

`awscrt` computes CRCs with processor instructions (8 to 14 GB/s per core for CRC32C and CRC64NVME),
and combines the CRCs of parts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from awscrt import checksums as crt

from snowmelt.buckets.errors import S3Error
from snowmelt.storage.store import BytesLike

FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"


class Hasher(Protocol):
    """Incremental checksum."""

    def update(self, data: BytesLike, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the checksum of the bytes so far."""


class _CrcHasher:
    def __init__(self, compute: Callable[[BytesLike, int], int], size: int) -> None:
        self._compute, self._size = compute, size
        self._value = 0

    def update(self, data: BytesLike, /) -> None:
        self._value = self._compute(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


_HASHERS: dict[str, tuple[int, Callable[[], Hasher]]] = {
    "CRC32": (4, lambda: _CrcHasher(zlib.crc32, 4)),
    "CRC32C": (4, lambda: _CrcHasher(crt.crc32c, 4)),
    "CRC64NVME": (8, lambda: _CrcHasher(crt.crc64nvme, 8)),
    "SHA1": (20, lambda: hashlib.sha1(usedforsecurity=False)),
    "SHA256": (32, hashlib.sha256),
}
# Functions that combine two checksums. The third argument is the size of the second part in bytes.
_COMBINERS: dict[str, Callable[[int, int, int], int]] = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    "CRC64NVME": crt.combine_crc64nvme,
}

CHECKSUM_ALGORITHMS = tuple(_HASHERS)
# Further algorithms of S3.
_UNSUPPORTED_S3_ALGORITHMS = frozenset({"MD5", "SHA512", "XXHASH64", "XXHASH3", "XXHASH128"})


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum in S3's form: base64, of the whole object or of the checksums of its parts."""

    algorithm: str
    value: str
    kind: str = FULL_OBJECT

    @property
    def header_name(self) -> str:
        """Name of the HTTP header."""
        return f"x-amz-checksum-{self.algorithm.lower()}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.kind}:{self.value}"

    @classmethod
    def parse(cls, text: str) -> Checksum:
        """Parse a checksum that `str` formatted."""
        algorithm, kind, value = text.split(":")
        return cls(algorithm, value, kind)


def new_hasher(algorithm: str) -> Hasher:
    """Return a new hasher for one of `CHECKSUM_ALGORITHMS`."""
    return _HASHERS[algorithm][1]()


def parse_client_checksum(algorithm: str, value: str) -> Checksum:
    """Parse a checksum sent by a client.

    Raises:
        S3Error: If the value is not a checksum of the algorithm.
    """
    try:
        digest = base64.b64decode(value, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != _HASHERS[algorithm][0]:
        raise S3Error(
            "InvalidRequest", f"Value for x-amz-checksum-{algorithm.lower()} header is invalid."
        )
    return Checksum(algorithm, value)


def parse_checksum_algorithm(name: str | None) -> str | None:
    """Return the algorithm in a header, or None if the header is missing.

    Raises:
        S3Error: If the algorithm is not supported.
    """
    if not name:
        return None
    algorithm = name.strip().upper()
    if algorithm not in _HASHERS and algorithm not in _UNSUPPORTED_S3_ALGORITHMS:
        raise S3Error("InvalidRequest", f"Unknown checksum algorithm {algorithm[:30]!r}.")
    if algorithm not in _HASHERS:
        offered = ", ".join(CHECKSUM_ALGORITHMS)
        raise S3Error(
            "NotImplemented",
            f"Checksum algorithm {algorithm[:30]} is not supported. Valid algorithms: {offered}.",
        )
    return algorithm


def default_checksum_kind(algorithm: str) -> str:
    """Return the kind of checksum that S3 uses for a multipart upload that does not state it."""
    return FULL_OBJECT if algorithm == "CRC64NVME" else COMPOSITE


def check_checksum_kind(algorithm: str, kind: str) -> None:
    """Verify that an algorithm supports a kind of checksum.

    Raises:
        S3Error: If it does not support the kind.
    """
    possible = {FULL_OBJECT} if algorithm == "CRC64NVME" else {COMPOSITE}
    if algorithm in _COMBINERS:
        possible.add(FULL_OBJECT)
    if kind not in possible:
        raise S3Error(
            "InvalidRequest",
            f"The {kind} checksum type cannot be used with the {algorithm} checksum algorithm.",
        )


def combine_part_checksums(
    algorithm: str, kind: str, parts: Iterable[tuple[Checksum, int]]
) -> Checksum:
    """Compute the checksum of an object from the checksums and sizes of its parts."""
    digests = [(base64.b64decode(part.value), size) for part, size in parts]
    if kind == COMPOSITE:
        whole = new_hasher(algorithm)
        whole.update(b"".join(digest for digest, _ in digests))
        return Checksum(algorithm, f"{_encode_base64(whole.digest())}-{len(digests)}", COMPOSITE)
    value = 0
    for digest, size in digests:
        value = _COMBINERS[algorithm](value, int.from_bytes(digest, "big"), size)
    return Checksum(algorithm, _encode_base64(value.to_bytes(_HASHERS[algorithm][0], "big")))


def to_checksum(algorithm: str, hasher: Hasher) -> Checksum:
    """Return the checksum of all bytes added to a hasher."""
    return Checksum(algorithm, _encode_base64(hasher.digest()))


def _encode_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
