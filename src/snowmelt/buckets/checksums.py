"""Checksums of objects by S3's algorithms, and their combination over the parts of an upload.

`awscrt` computes the cyclic redundancy checks with the processor's own instructions (8 to 14 GB/s a
core for CRC32C and CRC64NVME) and combines those of parts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from awscrt import checksums as crt

from snowmelt.buckets.errors import S3Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from snowmelt.storage.store import BytesLike

_Array: TypeAlias = "NDArray[Any]"

_LANE_BYTES = 64
_LANE_COUNTS = (16384, 1024, 64)


class CrcPolynomial:
    """A reflected polynomial with its tables; registers begin and end inverted."""

    def __init__(self, bits: int, polynomial: int) -> None:
        self.bits = bits
        self.mask = (1 << bits) - 1
        self._dtype: Any = np.uint32 if bits == 32 else np.uint64
        self._byte_table = [self._make_table_entry(value, polynomial) for value in range(256)]
        # Entry b: the register after two zero bytes when it was b.
        self._two_byte_table = np.array(
            [self._step_zero_byte(self._step_zero_byte(value)) for value in range(65536)],
            dtype=self._dtype,
        )
        self._shift_matrices: dict[int, list[int]] = {}
        self._shift_tables: dict[int, list[_Array]] = {}

    @staticmethod
    def _make_table_entry(value: int, polynomial: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        return value

    def _step_zero_byte(self, register: int) -> int:
        return self._byte_table[register & 255] ^ (register >> 8)

    def update(self, register: int, data: BytesLike) -> int:
        """Return the register after these bytes."""
        rest = memoryview(data).cast("B")
        for lanes in _LANE_COUNTS:
            block = lanes * _LANE_BYTES
            while len(rest) >= block:
                register = self._update_block(register, rest[:block], lanes)
                rest = rest[block:]
        one = self._byte_table
        for byte in rest.tobytes():
            register = one[(register ^ byte) & 255] ^ (register >> 8)
        return register

    def append_zero_bytes(self, register: int, zero_bytes: int) -> int:
        """Return the register after `zero_bytes` zero bytes."""
        power = 0
        while zero_bytes:
            if zero_bytes & 1:
                register = _apply_matrix(self._shift_matrix(power), register)
            zero_bytes >>= 1
            power += 1
        return register

    def _update_block(self, register: int, data: memoryview, lanes: int) -> int:
        words = np.frombuffer(data, dtype="<u2").reshape(lanes, _LANE_BYTES // 2)
        columns = np.ascontiguousarray(words.T)
        state: _Array = np.zeros(lanes, dtype=self._dtype)
        state[0] = register
        low = np.empty(lanes, dtype=np.uint16)
        for column in columns:
            np.bitwise_xor(state.astype(np.uint16), column, out=low)
            state = (state >> self._dtype(16)) ^ self._two_byte_table[low]
        power = _LANE_BYTES.bit_length() - 1
        while len(state) > 1:
            state = self._shift_registers(state[::2], power) ^ state[1::2]
            power += 1
        return int(state[0])

    def _shift_registers(self, state: _Array, power: int) -> _Array:
        tables = self._shift_tables.get(power)
        if tables is None:
            columns = self._shift_matrix(power)
            tables = [
                np.array(
                    [_apply_matrix(columns, value << shift) for value in range(256)],
                    dtype=self._dtype,
                )
                for shift in range(0, self.bits, 8)
            ]
            self._shift_tables[power] = tables
        moved: _Array = np.zeros(len(state), dtype=self._dtype)
        for place, table in enumerate(tables):
            moved = moved ^ table[(state >> self._dtype(8 * place)).astype(np.uint8)]
        return moved

    def _shift_matrix(self, power: int) -> list[int]:
        """Return what moving by 2**power bytes makes of each single bit."""
        if power not in self._shift_matrices:
            if power == 0:
                self._shift_matrices[0] = [
                    self._step_zero_byte(1 << bit) for bit in range(self.bits)
                ]
            else:
                half = self._shift_matrix(power - 1)
                self._shift_matrices[power] = [_apply_matrix(half, value) for value in half]
        return self._shift_matrices[power]


class CrcHasher:
    """One check in progress, used like the hashes of `hashlib`."""

    def __init__(self, polynomial: CrcPolynomial) -> None:
        self._polynomial = polynomial
        self._register = polynomial.mask

    def update(self, data: BytesLike) -> None:
        """Take in more bytes."""
        self._register = self._polynomial.update(self._register, data)

    def digest(self) -> bytes:
        """Return the check of the bytes so far, big-endian."""
        bits = self._polynomial.bits
        return (self._register ^ self._polynomial.mask).to_bytes(bits // 8, "big")


@cache
def crc32_polynomial() -> CrcPolynomial:
    """Return the polynomial of zlib's CRC-32; `zlib.crc32` computes it faster."""
    return CrcPolynomial(32, 0xEDB88320)


@cache
def crc32c_polynomial() -> CrcPolynomial:
    """Return Castagnoli's polynomial."""
    return CrcPolynomial(32, 0x82F63B78)


@cache
def crc64nvme_polynomial() -> CrcPolynomial:
    """Return the polynomial of NVM Express."""
    return CrcPolynomial(64, 0x9A6C9329AC4BC9B5)


def _apply_matrix(columns: list[int], register: int) -> int:
    moved = 0
    bit = 0
    while register:
        if register & 1:
            moved ^= columns[bit]
        register >>= 1
        bit += 1
    return moved


FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"


class Hasher(Protocol):
    """A checksum in progress."""

    def update(self, data: BytesLike, /) -> None:
        """Take in more bytes."""

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
# Two checks and the size of what the second is of, in bytes: the check of both together.
_COMBINERS: dict[str, Callable[[int, int, int], int]] = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    "CRC64NVME": crt.combine_crc64nvme,
}

CHECKSUM_ALGORITHMS = tuple(_HASHERS)
# S3 has these, too.
_UNSUPPORTED_S3_ALGORITHMS = frozenset({"MD5", "SHA512", "XXHASH64", "XXHASH3", "XXHASH128"})


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum as S3 shows it: base64, and of the whole object or of its parts' checksums."""

    algorithm: str
    value: str
    kind: str = FULL_OBJECT

    @property
    def header_name(self) -> str:
        """The name of its HTTP header."""
        return f"x-amz-checksum-{self.algorithm.lower()}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.kind}:{self.value}"

    @classmethod
    def parse(cls, text: str) -> Checksum:
        """Return what `str` of a checksum was made of."""
        algorithm, kind, value = text.split(":")
        return cls(algorithm, value, kind)


def new_hasher(algorithm: str) -> Hasher:
    """Return a new checksum of one of `CHECKSUM_ALGORITHMS`."""
    return _HASHERS[algorithm][1]()


def parse_client_checksum(algorithm: str, value: str) -> Checksum:
    """Return a checksum that a client sent.

    Raises:
        S3Refusal: It is not one.
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
    """Return the algorithm that a header names, None where it names none.

    Raises:
        S3Refusal: It is none of those offered.
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
            f"Checksum algorithm {algorithm[:30]} is not offered here; these are: {offered}.",
        )
    return algorithm


def default_checksum_kind(algorithm: str) -> str:
    """Return the kind that S3 gives an upload in parts that names none."""
    return FULL_OBJECT if algorithm == "CRC64NVME" else COMPOSITE


def check_checksum_kind(algorithm: str, kind: str) -> None:
    """Let pass a kind that this algorithm can have.

    Raises:
        S3Refusal: It cannot.
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
    """Return the checksum of an object from those of its parts, with the parts' sizes."""
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
    """Return the checksum of what a hash has taken in."""
    return Checksum(algorithm, _encode_base64(hasher.digest()))


def _encode_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
