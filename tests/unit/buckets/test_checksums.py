from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.buckets import checksums
from snowmelt.buckets import checksums as crc
from snowmelt.buckets.errors import S3Error

# The check values of the catalogues: the checksum of the nine digits.
CHECKS = {
    "CRC32": "cbf43926",
    "CRC32C": "e3069283",
    "CRC64NVME": "ae8b14860a799888",
    "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}
POLYNOMIALS = {
    "CRC32": crc.crc32_polynomial,
    "CRC32C": crc.crc32c_polynomial,
    "CRC64NVME": crc.crc64nvme_polynomial,
}


def value_of(algorithm, data) -> checksums.Checksum:
    hashing = checksums.new_hasher(algorithm)
    hashing.update(data)
    return checksums.to_checksum(algorithm, hashing)


@pytest.mark.parametrize("algorithm", CHECKS)
def test_the_nine_digits_have_the_value_of_the_catalogue(algorithm):
    assert base64.b64decode(value_of(algorithm, b"123456789").value).hex() == CHECKS[algorithm]


@pytest.mark.parametrize("algorithm", POLYNOMIALS)
@given(
    size=st.sampled_from([0, 1, 63, 64, 4095, 4096, 4097, 65_535, 70_000, 1_048_576, 1_200_001]),
    cut=st.floats(0, 1),
    seed=st.integers(0, 255),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_lanes_agree_with_bytes_wherever_the_data_is_cut(algorithm, size, cut, seed):
    data = bytes((seed + i * i) % 251 for i in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    at = int(size * cut)
    hashing = crc.CrcHasher(POLYNOMIALS[algorithm]())
    hashing.update(data[:at])
    hashing.update(memoryview(data)[at:])
    polynomial = POLYNOMIALS[algorithm]()
    if algorithm == "CRC32":
        assert hashing.digest() == zlib.crc32(data).to_bytes(4, "big")
    elif size <= 70_000:
        register = polynomial.mask
        for byte in data:
            register = polynomial.update(register, bytes([byte]))
        register ^= polynomial.mask
        assert hashing.digest() == register.to_bytes(polynomial.bits // 8, "big")
    parts = [(value_of(algorithm, piece), len(piece)) for piece in (data[:at], data[at:])]
    whole = checksums.combine_part_checksums(algorithm, checksums.FULL_OBJECT, parts)
    assert base64.b64decode(whole.value) == hashing.digest()


def test_a_composite_checksum_is_of_the_parts_checksums():
    parts = [(value_of("SHA256", b"a"), 1), (value_of("SHA256", b"b"), 1)]
    digests = b"".join(base64.b64decode(part.value) for part, _ in parts)
    whole = checksums.combine_part_checksums("SHA256", checksums.COMPOSITE, parts)
    assert whole.value == f"{value_of('SHA256', digests).value}-2"
    assert checksums.Checksum.parse(str(whole)) == whole


@pytest.mark.parametrize("value", ["", "AAAA", "not base64", "AAAAAAAA"])
def test_what_is_no_checksum_is_refused(value):
    with pytest.raises(S3Error, match="crc32"):
        checksums.parse_client_checksum("CRC32", value)


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("CRC64NVME", "COMPOSITE"), ("SHA1", "FULL_OBJECT"), ("CRC32", "X")]
)
def test_kinds_that_cannot_be_are_refused(algorithm, kind):
    with pytest.raises(S3Error, match="cannot be used"):
        checksums.check_checksum_kind(algorithm, kind)
