"""Tokens have the claims of the specification of v1, §1.3, and are renewed in time."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from snowmelt.client.auth import KeyPairTokenProvider, compute_key_fingerprint, load_private_key
from snowmelt.clock import ManualClock
from snowmelt.errors import ConfigurationError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
START = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def test_a_token_names_account_user_and_fingerprint_for_59_minutes() -> None:
    token = KeyPairTokenProvider("acme", "loader", KEY, ManualClock(START)).get_token()
    assert jwt.get_unverified_header(token) == {"alg": "RS256"}
    claims = jwt.decode(
        token,
        KEY.public_key(),
        algorithms=["RS256"],
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims["sub"] == "ACME.LOADER"
    assert claims["iss"] == f"ACME.LOADER.{compute_key_fingerprint(KEY)}"
    assert claims["exp"] - claims["iat"] == 3540
    assert claims["iat"] == START.timestamp()


def test_a_token_is_renewed_after_54_minutes() -> None:
    clock = ManualClock(START)
    tokens = KeyPairTokenProvider("acme", "loader", KEY, clock)
    first = tokens.get_token()
    clock.advance(54 * 60 - 1)
    assert tokens.get_token() == first
    clock.advance(1)
    assert tokens.get_token() != first


def test_a_refused_token_is_replaced_once() -> None:
    clock = ManualClock(START)
    tokens = KeyPairTokenProvider("acme", "loader", KEY, clock)
    refused = tokens.get_token()
    clock.advance(1)
    second = tokens.replace_token(refused)
    assert second != refused
    clock.advance(1)
    assert tokens.replace_token(refused) == second


def test_after_the_clock_went_back_the_replacement_is_not_from_the_future() -> None:
    clock = ManualClock(START)
    tokens = KeyPairTokenProvider("acme", "loader", KEY, clock)
    refused = tokens.get_token()
    earlier = START - dt.timedelta(days=1)
    clock.set_wall(earlier)
    assert tokens.get_token() == refused, "only the service knows that the clock was wrong"
    claims = jwt.decode(tokens.replace_token(refused), options={"verify_signature": False})
    assert claims["iat"] == earlier.timestamp()
    clock.advance(54 * 60)
    renewed = jwt.decode(tokens.get_token(), options={"verify_signature": False})
    assert renewed["iat"] == earlier.timestamp() + 54 * 60


def test_a_key_may_be_text_bytes_base64_or_a_file(tmp_path: Path) -> None:
    text = pem(KEY)
    file = tmp_path / "key.p8"
    file.write_text(text)
    bare = "".join(line for line in text.splitlines() if "-----" not in line)
    for source in (text, text.encode(), bare, file, str(file)):
        assert compute_key_fingerprint(load_private_key(source)) == compute_key_fingerprint(KEY)


@pytest.mark.parametrize("source", ["", "nonsense", "a\0b", b"-----BEGIN PRIVATE KEY-----"])
def test_what_is_no_key_is_refused_with_a_sentence(source: bytes | str) -> None:
    with pytest.raises(ConfigurationError, match="neither a key in PEM"):
        load_private_key(source)


def test_numbers_that_make_no_key_are_refused_each_time_and_sound_ones_are_looked_at_once() -> None:
    numbers = KEY.private_numbers()
    sound = pem(numbers.private_key())
    assert compute_key_fingerprint(load_private_key(sound)) == compute_key_fingerprint(
        load_private_key(sound)
    )
    broken = rsa.RSAPrivateNumbers(
        numbers.p,
        numbers.q,
        numbers.d ^ 4,
        numbers.dmp1,
        numbers.dmq1,
        numbers.iqmp,
        numbers.public_numbers,
    )
    wrong = pem(broken.private_key(unsafe_skip_rsa_key_validation=True))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="private_key"):
            load_private_key(wrong)


def test_a_refused_key_is_named_and_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'nope\.pem' is neither a key"):
        load_private_key("nope.pem")
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "key.pub").write_bytes(public)
    with pytest.raises(ConfigurationError, match=r"key\.pub is a public key; the client needs"):
        load_private_key(str(tmp_path / "key.pub"))
    locked = KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ConfigurationError, match="has a passphrase"):
        load_private_key(locked)
    spoilt = "".join(pem(KEY).splitlines()[1:-1])[:-40]
    with pytest.raises(ConfigurationError) as told:
        load_private_key(spoilt)
    assert spoilt[:40] not in str(told.value), "a key is never told"


def test_a_missing_file_and_another_kind_of_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_private_key(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="not an RSA key"):
        load_private_key(pem(ec.generate_private_key(ec.SECP256R1())))
