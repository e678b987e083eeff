"""Checksums of objects, as S3 names and combines them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from snowmelt.buckets import crc
from snowmelt.buckets.refusals import S3Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from snowmelt.storage.store import Readable

FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"


class Hash(Protocol):
    """A checksum in progress."""

    def update(self, data: Readable, /) -> None:
        """Take in more bytes."""

    def digest(self) -> bytes:
        """Return the checksum of the bytes so far."""


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Readable, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


_HASHES: dict[str, tuple[int, Callable[[], Hash]]] = {
    "CRC32": (4, _Crc32),
    "CRC32C": (4, lambda: crc.Crc(crc.crc32c())),
    "CRC64NVME": (8, lambda: crc.Crc(crc.crc64nvme())),
    "SHA1": (20, lambda: hashlib.sha1(usedforsecurity=False)),
    "SHA256": (32, hashlib.sha256),
}
_COMBINABLE = {"CRC32": crc.crc32, "CRC32C": crc.crc32c, "CRC64NVME": crc.crc64nvme}

ALGORITHMS = tuple(_HASHES)
# S3 has these, too.
_OF_S3_ALONE = frozenset({"MD5", "SHA512", "XXHASH64", "XXHASH3", "XXHASH128"})


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum as S3 shows it: base64, and of the whole object or of its parts' checksums."""

    algorithm: str
    value: str
    kind: str = FULL_OBJECT

    @property
    def header(self) -> str:
        """The name of its HTTP header."""
        return f"x-amz-checksum-{self.algorithm.lower()}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.kind}:{self.value}"

    @classmethod
    def parse(cls, text: str) -> Checksum:
        """Return what `str` of a checksum was made of."""
        algorithm, kind, value = text.split(":")
        return cls(algorithm, value, kind)


def start(algorithm: str) -> Hash:
    """Return a new checksum of one of `ALGORITHMS`."""
    return _HASHES[algorithm][1]()


def given(algorithm: str, value: str) -> Checksum:
    """Return a checksum that a client sent.

    Raises:
        S3Refusal: It is not one.
    """
    try:
        digest = base64.b64decode(value, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != _HASHES[algorithm][0]:
        raise S3Refusal(
            "InvalidRequest", f"Value for x-amz-checksum-{algorithm.lower()} header is invalid."
        )
    return Checksum(algorithm, value)


def known(name: str | None) -> str | None:
    """Return the algorithm that a header names, None where it names none.

    Raises:
        S3Refusal: It is none of those offered.
    """
    if not name:
        return None
    algorithm = name.strip().upper()
    if algorithm not in _HASHES and algorithm not in _OF_S3_ALONE:
        raise S3Refusal("InvalidRequest", f"Unknown checksum algorithm {algorithm[:30]!r}.")
    if algorithm not in _HASHES:
        offered = ", ".join(ALGORITHMS)
        raise S3Refusal(
            "NotImplemented",
            f"Checksum algorithm {algorithm[:30]} is not offered here; these are: {offered}.",
        )
    return algorithm


def default_kind(algorithm: str) -> str:
    """Return the kind that S3 gives an upload in parts that names none."""
    return FULL_OBJECT if algorithm == "CRC64NVME" else COMPOSITE


def check_kind(algorithm: str, kind: str) -> None:
    """Let pass a kind that this algorithm can have.

    Raises:
        S3Refusal: It cannot.
    """
    possible = {FULL_OBJECT} if algorithm == "CRC64NVME" else {COMPOSITE}
    if algorithm in _COMBINABLE:
        possible.add(FULL_OBJECT)
    if kind not in possible:
        raise S3Refusal(
            "InvalidRequest",
            f"The {kind} checksum type cannot be used with the {algorithm} checksum algorithm.",
        )


def of_parts(algorithm: str, kind: str, parts: Iterable[tuple[Checksum, int]]) -> Checksum:
    """Return the checksum of an object from those of its parts, with the parts' sizes."""
    digests = [(base64.b64decode(part.value), size) for part, size in parts]
    if kind == COMPOSITE:
        whole = start(algorithm)
        whole.update(b"".join(digest for digest, _ in digests))
        return Checksum(algorithm, f"{_text(whole.digest())}-{len(digests)}", COMPOSITE)
    polynomial = _COMBINABLE[algorithm]()
    value = 0
    for digest, size in digests:
        value = polynomial.move(value, size) ^ int.from_bytes(digest, "big")
    return Checksum(algorithm, _text(value.to_bytes(polynomial.bits // 8, "big")))


def finished(algorithm: str, hashing: Hash) -> Checksum:
    """Return the checksum of what a hash has taken in."""
    return Checksum(algorithm, _text(hashing.digest()))


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
