"""Keys and counters follow the formulas of the specification, computed here by other means."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.blob.encryption import apply_aes_ctr, apply_aes_ctr_into, derive_blob_key

PATH = "2026/11/21/1/40/totwo8_abc_4711_18_0.bdec"


def block_by_block(data: bytes, key: bytes, offset: int) -> bytes:
    """Counter mode from its definition: data XOR AES(counter), counter = block number."""
    blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    out = bytearray()
    for number in range(0, len(data), 16):
        pad = blocks.update(b"\0" * 8 + (offset // 16 + number // 16).to_bytes(8, "big"))
        out += bytes(a ^ b for a, b in zip(data[number : number + 16], pad, strict=False))
    return bytes(out)


def test_the_key_is_the_hash_of_data_key_and_path() -> None:
    data_key = bytes(range(32))
    digest = hashlib.sha256()
    digest.update(data_key)
    digest.update(PATH.encode("utf-8"))
    assert derive_blob_key(data_key, PATH) == digest.digest()


@given(data=st.binary(max_size=200), blocks=st.integers(0, 2**40))
def test_the_counter_is_the_number_of_the_block(data: bytes, blocks: int) -> None:
    key = derive_blob_key(b"k" * 32, PATH)
    cipher = apply_aes_ctr(data, key=key, offset=blocks * 16)
    assert cipher == block_by_block(data, key, blocks * 16)
    assert apply_aes_ctr(cipher, key=key, offset=blocks * 16) == data
    target = bytearray(len(data))
    apply_aes_ctr_into(data, memoryview(target), key=key, offset=blocks * 16)
    assert target == cipher


def test_the_counter_runs_on_across_chunks() -> None:
    key = derive_blob_key(b"k" * 32, PATH)
    data = bytes(100)
    whole = apply_aes_ctr(data, key=key, offset=0)
    assert apply_aes_ctr(data[48:], key=key, offset=48) == whole[48:]


def test_an_offset_between_blocks_counts_whole_blocks() -> None:
    key = derive_blob_key(b"k" * 32, PATH)
    assert apply_aes_ctr(b"abc", key=key, offset=17) == apply_aes_ctr(b"abc", key=key, offset=16)


def test_a_key_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        apply_aes_ctr(b"abc", key=b"k" * 16, offset=0)
