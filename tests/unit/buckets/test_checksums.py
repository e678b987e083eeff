from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.buckets import checksums
from snowmelt.buckets.errors import S3Error

# The check values of the catalogues: the checksum of the nine digits.
CHECKS = {
    "CRC32": "cbf43926",
    "CRC32C": "e3069283",
    "CRC64NVME": "ae8b14860a799888",
    "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}
# Reflected, with registers that begin and end inverted.
POLYNOMIALS = {"CRC32": 0xEDB88320, "CRC32C": 0x82F63B78, "CRC64NVME": 0x9A6C9329AC4BC9B5}


def value_of(algorithm: str, data: bytes) -> checksums.Checksum:
    hashing = checksums.new_hasher(algorithm)
    hashing.update(data)
    return checksums.to_checksum(algorithm, hashing)


@pytest.mark.parametrize("algorithm", CHECKS)
def test_the_nine_digits_have_the_value_of_the_catalogue(algorithm: str) -> None:
    assert base64.b64decode(value_of(algorithm, b"123456789").value).hex() == CHECKS[algorithm]


def check_bit_by_bit(algorithm: str, data: bytes) -> bytes:
    """Return a check by its definition."""
    size = 8 if algorithm == "CRC64NVME" else 4
    register = inverted = (1 << 8 * size) - 1
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (POLYNOMIALS[algorithm] if register & 1 else 0)
    return (register ^ inverted).to_bytes(size, "big")


@pytest.mark.parametrize("algorithm", POLYNOMIALS)
@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
@settings(max_examples=settings().max_examples // 4)
def test_checks_follow_their_definition_wherever_the_data_is_cut(
    algorithm: str, data: bytes, cut: int
) -> None:
    hashing = checksums.new_hasher(algorithm)
    hashing.update(data[:cut])
    hashing.update(memoryview(data)[cut:])
    assert hashing.digest() == check_bit_by_bit(algorithm, data)
    parts = [(value_of(algorithm, piece), len(piece)) for piece in (data[:cut], data[cut:])]
    whole = checksums.combine_part_checksums(algorithm, checksums.FULL_OBJECT, parts)
    assert base64.b64decode(whole.value) == hashing.digest()


def test_a_composite_checksum_is_of_the_parts_checksums() -> None:
    parts = [(value_of("SHA256", b"a"), 1), (value_of("SHA256", b"b"), 1)]
    digests = b"".join(base64.b64decode(part.value) for part, _ in parts)
    whole = checksums.combine_part_checksums("SHA256", checksums.COMPOSITE, parts)
    assert whole.value == f"{value_of('SHA256', digests).value}-2"
    assert checksums.Checksum.parse(str(whole)) == whole


@pytest.mark.parametrize("value", ["", "AAAA", "not base64", "AAAAAAAA"])
def test_what_is_no_checksum_is_refused(value: str) -> None:
    with pytest.raises(S3Error, match="crc32"):
        checksums.parse_client_checksum("CRC32", value)


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("CRC64NVME", "COMPOSITE"), ("SHA1", "FULL_OBJECT"), ("CRC32", "X")]
)
def test_kinds_that_cannot_be_are_refused(algorithm: str, kind: str) -> None:
    with pytest.raises(S3Error, match="cannot be used"):
        checksums.check_checksum_kind(algorithm, kind)
