"""A user's key is exchanged by SQL while clients go on: the second first, then the first away."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import jwt
import pytest

from fixtures.service import KeyPair
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import AuthenticationFailed
from snowmelt.server.auth import RECHECK_INTERVAL_S, Authenticator

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def headers_of(key: KeyPair, fingerprint: str) -> dict[bytes, bytes]:
    at = int(NOW.timestamp())
    claims = {"iss": f"127.ANN.{fingerprint}", "sub": "127.ANN", "iat": at, "exp": at + 3540}
    text = jwt.encode(claims, key.private_pem, algorithm="RS256")
    return {b"authorization": b"Bearer " + text.encode()}


@pytest.mark.slow
def test_either_key_signs_until_it_is_unset(tmp_path: Path, key_pair: KeyPair) -> None:
    clock = ManualClock(NOW)
    other = KeyPair.generate()
    with contextlib.closing(
        open_and_upgrade_database(str(tmp_path / "catalog.db"), clock=clock)
    ) as database:

        def run(text: str) -> None:
            execute_statement(database, text, clock=clock)

        run(f"CREATE USER ann RSA_PUBLIC_KEY = '{key_pair.public_base64}'")
        run(f"ALTER USER ann SET RSA_PUBLIC_KEY_2 = '{other.public_base64}'")
        with database.reading() as connection:
            first, second = access_control.find_user(connection, "ANN").fingerprints
        old, new = headers_of(key_pair, first), headers_of(other, second)
        authenticator = Authenticator(database, KeyRing(bytes(32)), clock)
        assert [authenticator.authenticate_any(each).user for each in (old, new)] == ["ANN", "ANN"]
        run("ALTER USER ann UNSET RSA_PUBLIC_KEY")
        clock.advance(RECHECK_INTERVAL_S)
        with pytest.raises(AuthenticationFailed):
            authenticator.authenticate_any(old)
        assert authenticator.authenticate_any(new).user == "ANN"
        run(f"ALTER USER ann SET RSA_PUBLIC_KEY = '{key_pair.public_base64}'")
        run("ALTER USER ann UNSET RSA_PUBLIC_KEY_2")
        clock.advance(RECHECK_INTERVAL_S)
        assert authenticator.authenticate_any(old).user == "ANN"
        with pytest.raises(AuthenticationFailed):
            authenticator.authenticate_any(new)
