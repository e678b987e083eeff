from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import jwt
import pytest

from fixtures.service import KeyPair
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import ManualClock
from snowmelt.errors import AuthenticationFailed
from snowmelt.server.auth import RECHECK_INTERVAL_S, Authenticator, Principal
from support.catalog_files import new_catalog

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
KEYRING = KeyRing(bytes(32))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def database(tmp_path: Path, key_pair: KeyPair, clock: ManualClock) -> Iterator[Database]:
    database = open_and_upgrade_database(str(new_catalog(tmp_path / "catalog.db")), clock=clock)
    with database.writing() as connection:
        access_control.create_user(connection, "U.X", public_key=key_pair.public_base64, now=NOW)
    yield database
    database.close()


@pytest.fixture
def authenticator(database: Database, clock: ManualClock) -> Authenticator:
    return Authenticator(database, KEYRING, clock)


@pytest.fixture
def fingerprint(database: Database) -> str:
    with database.reading() as connection:
        return access_control.find_user(connection, "U.X").fingerprints[0]


def token(
    key: KeyPair,
    fingerprint: str,
    *,
    headers: Any = None,
    algorithm: str = "RS256",
    **changed: object,
) -> str:
    """A token of user U.X; changes to its claims, None leaves a claim out."""
    at = int(NOW.timestamp())
    claims = {"iss": f"127.U.X.{fingerprint}", "sub": "127.U.X", "iat": at, "exp": at + 3540}
    claims = {name: value for name, value in (claims | changed).items() if value is not None}
    return jwt.encode(
        claims, key.private_pem, algorithm=algorithm, headers=headers or {"typ": None}
    )


def bearer(text: str, **headers: bytes) -> dict[Any, bytes]:
    return {b"authorization": b"Bearer " + text.encode(), **headers}


def test_a_token_as_the_official_client_makes_it_is_accepted(
    authenticator: Authenticator, key_pair: KeyPair, fingerprint: str
) -> None:
    headers = bearer(token(key_pair, fingerprint))
    headers[b"x-snowflake-authorization-token-type"] = b"KEYPAIR_JWT"
    assert authenticator.get_cached_principal(headers) is None
    assert authenticator.authenticate_any(headers) == Principal("U.X")
    assert authenticator.get_cached_principal(headers) == Principal("U.X")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": int(NOW.timestamp()) - 31}, "expired"),
        ({"exp": int(NOW.timestamp()) + 3700}, "more than an hour"),
        ({"iat": int(NOW.timestamp()) + 60, "exp": int(NOW.timestamp()) + 600}, "clocks"),
        ({"exp": None}, "seconds since 1970"),
        ({"exp": True}, "seconds since 1970"),
        ({"sub": "127.V", "iss": "127.V.SHA256:AAAA"}, "user, key or signature is invalid"),
        ({"sub": None}, "iss and sub"),
        ({"iss": "127.U.X.SHA256:AAAA"}, "user, key or signature is invalid"),
        ({"iss": "127.V.SHA256:AAAA"}, "iss must be"),
    ],
)
def test_claims_that_do_not_hold_are_refused_with_the_reason(
    authenticator: Authenticator,
    key_pair: KeyPair,
    fingerprint: str,
    changed: dict[str, Any],
    reason: str,
) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        authenticator.authenticate_any(bearer(token(key_pair, fingerprint, **changed)))


def test_a_token_signed_with_another_key_is_refused(
    authenticator: Authenticator, fingerprint: str
) -> None:
    with pytest.raises(AuthenticationFailed, match="signature"):
        authenticator.authenticate_any(bearer(token(KeyPair.generate(), fingerprint)))


@pytest.mark.parametrize("algorithm", ["RS384", "PS256"])
def test_no_other_algorithm_is_accepted(
    authenticator: Authenticator, key_pair: KeyPair, fingerprint: str, algorithm: str
) -> None:
    with pytest.raises(AuthenticationFailed, match="signature"):
        authenticator.authenticate_any(bearer(token(key_pair, fingerprint, algorithm=algorithm)))


def test_an_unsigned_token_is_refused(
    authenticator: Authenticator, key_pair: KeyPair, fingerprint: str
) -> None:
    claims = jwt.decode(token(key_pair, fingerprint), options={"verify_signature": False})
    with pytest.raises(AuthenticationFailed):
        authenticator.authenticate_any(
            bearer(jwt.encode(claims, cast("str", None), algorithm="none"))
        )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Basic abc"},
        bearer("rubbish"),
        bearer("a.b.c"),
        bearer("x" * 9000),
        bearer("rubbish") | {b"x-snowflake-authorization-token-type": b"OAUTH"},
    ],
)
def test_whatever_is_no_key_pair_token_is_refused(
    authenticator: Authenticator, headers: dict[bytes, bytes]
) -> None:
    with pytest.raises(AuthenticationFailed):
        authenticator.authenticate_any(headers)


def test_a_remembered_token_ends_with_its_expiry_and_with_its_key(
    database: Database,
    authenticator: Authenticator,
    clock: ManualClock,
    key_pair: KeyPair,
    fingerprint: str,
) -> None:
    headers = bearer(token(key_pair, fingerprint, exp=int(NOW.timestamp()) + 60))
    authenticator.authenticate_any(headers)
    with database.writing() as connection:
        access_control.set_public_key(connection, "U.X", None)
    assert authenticator.authenticate_any(headers) == Principal("U.X")
    clock.advance(RECHECK_INTERVAL_S)
    with pytest.raises(AuthenticationFailed, match="user, key or signature is invalid"):
        authenticator.authenticate_any(headers)


def test_the_token_of_a_user_who_was_dropped_is_refused_once_it_is_not_remembered(
    database: Database,
    authenticator: Authenticator,
    clock: ManualClock,
    key_pair: KeyPair,
    fingerprint: str,
) -> None:
    headers = bearer(token(key_pair, fingerprint))
    authenticator.authenticate_any(headers)
    with database.writing() as connection:
        access_control.drop_user(connection, "U.X")
    clock.advance(RECHECK_INTERVAL_S)
    with pytest.raises(AuthenticationFailed, match="user, key or signature is invalid"):
        authenticator.authenticate_any(headers)


def test_a_token_that_expires_while_remembered_is_refused(
    authenticator: Authenticator, clock: ManualClock, key_pair: KeyPair, fingerprint: str
) -> None:
    headers = bearer(token(key_pair, fingerprint, exp=int(NOW.timestamp()) + 1))
    authenticator.authenticate_any(headers)
    clock.set_wall(NOW + dt.timedelta(seconds=40))
    with pytest.raises(AuthenticationFailed, match="expired"):
        authenticator.authenticate_any(headers)


def test_without_a_token_the_anonymous_user_is_taken_only_when_there_is_one(
    database: Database, clock: ManualClock, authenticator: Authenticator
) -> None:
    assert Authenticator(database, KEYRING, clock, anonymous_user="D").authenticate_any(
        {}
    ) == Principal("D")
    with pytest.raises(AuthenticationFailed, match="must contain"):
        authenticator.authenticate_any({})


def test_a_web_page_is_no_anonymous_user(database: Database, clock: ManualClock) -> None:
    authenticator = Authenticator(database, KEYRING, clock, anonymous_user="D")
    for origin in (b"https://evil.example", b"null", b"http://127.0.0.1:8080"):
        assert authenticator.get_cached_principal({b"origin": origin}) is None
        with pytest.raises(AuthenticationFailed, match="a web page sent the request"):
            authenticator.authenticate_any({b"origin": origin})


def test_an_access_key_is_a_token_until_it_is_taken_away(
    database: Database, clock: ManualClock, authenticator: Authenticator
) -> None:
    def asked(text: str) -> str:
        kind = b"PROGRAMMATIC_ACCESS_TOKEN"
        headers = {b"x-snowflake-authorization-token-type": kind}
        return authenticator.authenticate_any(bearer(text) | headers).user

    with database.writing() as connection:
        key = encryption_keys.create_access_key(connection, KEYRING, "U.X", now=NOW)
    whole = f"{key.access_key_id}.{key.secret}"
    assert asked(whole) == "U.X"
    for text in (
        key.access_key_id,
        key.secret,
        whole[:-1],
        whole + "x",
        "SMAK." + key.secret,
        "é.",
    ):
        with pytest.raises(AuthenticationFailed, match="user, key or signature is invalid"):
            asked(text)
    with database.writing() as connection:
        encryption_keys.drop_access_key(connection, "U.X", key.access_key_id)
    clock.advance(RECHECK_INTERVAL_S)
    with pytest.raises(AuthenticationFailed):
        asked(whole)


@pytest.mark.slow
def test_who_has_an_account_cannot_be_found_out(
    authenticator: Authenticator,
    key_pair: KeyPair,
    fingerprint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = set()
    for made in (
        token(key_pair, fingerprint, sub="127.V", iss=f"127.V.{fingerprint}"),
        token(key_pair, "SHA256:AAAA"),
        token(KeyPair.generate(), fingerprint),
    ):
        with pytest.raises(AuthenticationFailed) as refused:
            authenticator.authenticate_any(bearer(made))
        answers.add(str(refused.value))
    assert len(answers) == 1
    for detail in ("no user 'V'", "no key with fingerprint", "is invalid"):
        assert detail in caplog.text
