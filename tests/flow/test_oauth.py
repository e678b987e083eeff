"""OAuth: tokens of an authorisation server elsewhere open channels, as the role they name."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import snowmelt
from fix_service import prepare_loading
from snowmelt.catalog.database import open_database
from snowmelt.catalog.execution import execute
from snowmelt.errors import AuthenticationFailed, PrivilegeMissing, RoleNotGranted

ISSUER = "https://idp.example.com/tenant"
AUDIENCE = "https://snowmelt.example.com"
KEY = rsa.generate_private_key(65537, 2048)
STRANGERS_KEY = rsa.generate_private_key(65537, 2048)


class AuthorisationServer:
    """Answers refresh tokens, and shows its keys."""

    def __init__(self) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.authorizations: list[str] = []
        self.failures = 0
        idp = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
                self._answer(200, {"keys": [key | {"kid": "first", "use": "sig"}]})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                idp.authorizations.append(self.headers["Authorization"])
                idp.forms.append(parse_qs(body))
                if idp.failures:
                    idp.failures -= 1
                    self._answer(503, {})
                else:
                    self._answer(200, {"access_token": token(), "expires_in": 600})

            def _answer(self, status: int, message: object) -> None:
                body = json.dumps(message).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def token(key=KEY, kid: str = "first", **claims: object) -> str:
    now = int(time.time())
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "Loader",
        "scp": ["session:role:loading"],
        "iat": now,
        "exp": now + 600,
    }
    return jwt.encode(usual | claims, key, algorithm="RS256", headers={"kid": kid})


@pytest.fixture(scope="module")
def idp():
    server = AuthorisationServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def service(shared_service, key_pair, idp):
    prepare_loading(shared_service, key_pair, "oauth")
    shared_service.sql(
        "CREATE OR REPLACE SECURITY INTEGRATION idp TYPE = EXTERNAL_OAUTH ENABLED = TRUE"
        f" EXTERNAL_OAUTH_TYPE = CUSTOM EXTERNAL_OAUTH_ISSUER = '{ISSUER}'"
        " EXTERNAL_OAUTH_TOKEN_USER_MAPPING_CLAIM = ('upn', 'sub')"
        " EXTERNAL_OAUTH_SNOWFLAKE_USER_MAPPING_ATTRIBUTE = 'LOGIN_NAME'"
        f" EXTERNAL_OAUTH_AUDIENCE_LIST = ('{AUDIENCE}')"
        f" EXTERNAL_OAUTH_JWS_KEYS_URL = '{idp.url}/keys'"
    )
    return shared_service


def test_rows_come_in_with_a_token_that_is_refreshed(service, idp):
    idp.failures = 1
    oauth = snowmelt.OAuth("the client", "a secret", "refresh me", f"{idp.url}/token")
    with (
        snowmelt.Client(service.url, oauth=oauth) as client,
        client.open_channel("refreshed", table="oauth.public.t") as channel,
    ):
        channel.insert_row({"id": 1}, offset_token="1")
        channel.wait_for_commit("1")
    assert idp.forms[-1] == {"grant_type": ["refresh_token"], "refresh_token": ["refresh me"]}
    basic = "Basic " + base64.b64encode(b"the client:a secret").decode()
    assert idp.authorizations[-1] == basic
    assert len(idp.forms) == 2
    assert "a secret" not in repr(oauth)


def test_a_token_names_the_roles(service):
    given = lambda: token(scp="session:role:public session:role:loading")  # noqa: E731
    with (
        snowmelt.Client(service.url, oauth=given, role="loading") as client,
        client.open_channel("given", table="oauth.public.t"),
    ):
        pass
    with pytest.raises(RoleNotGranted, match="does not allow role ACCOUNTADMIN"):
        snowmelt.Client(service.url, oauth=given, role="accountadmin")


def test_columns_are_added_as_a_role_of_the_token_only(service):
    service.sql("CREATE ROLE IF NOT EXISTS shaping")
    service.sql("GRANT ROLE shaping TO USER loader")
    service.sql("GRANT EVOLVE SCHEMA ON TABLE oauth.public.t TO ROLE shaping")
    service.sql("ALTER TABLE oauth.public.t SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    asked = {"database": "oauth", "schema": "public", "table": "t", "role": "shaping"}
    answer = httpx.post(
        f"{service.url}/v1/snowmelt/tables/evolve",
        json=asked | {"columns": [{"name": "beyond", "type": "INT"}]},
        headers={
            "Authorization": f"Bearer {token(scp='session:role:loading')}",
            "X-Snowflake-Authorization-Token-Type": "OAUTH",
        },
    )
    assert answer.json()["error"] == "role_not_granted"
    assert "does not allow role SHAPING" in answer.text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://elsewhere.example.com"}, "no enabled security integration"),
        ({"aud": "https://other.example.com"}, "another audience"),
        ({"key": STRANGERS_KEY}, "signature does not hold"),
        ({"kid": "unknown"}, "signature does not hold"),
        ({"exp": 1_000_000}, "expired"),
        ({"sub": "nobody"}, "names no user"),
        ({"scp": ["session:role:accountadmin"]}, "no scope session:role"),
        ({"scp": ["session:role-any"]}, "no scope session:role"),
        ({"scp": "openid"}, "no scope session:role"),
    ],
)
def test_a_token_that_does_not_hold_is_refused(service, changed, reason):
    with pytest.raises(AuthenticationFailed, match=reason):
        snowmelt.Client(service.url, oauth=token(**changed))


def test_whose_tokens_are_taken_is_the_administrators(service):
    assert [row[0] for row in service.sql("SHOW SECURITY INTEGRATIONS").rows] == ["IDP"]
    settings = service.settings
    with contextlib.closing(open_database(settings.catalog_url)) as database:
        with pytest.raises(PrivilegeMissing):
            execute(database, "DROP SECURITY INTEGRATION idp", user="LOADER")
        assert not execute(database, "SHOW SECURITY INTEGRATIONS", user="LOADER").rows


def test_an_integration_that_is_dropped_takes_no_more_tokens(service, key_pair):
    service.sql(
        "CREATE SECURITY INTEGRATION second TYPE = EXTERNAL_OAUTH ENABLED = TRUE"
        " EXTERNAL_OAUTH_TYPE = OKTA EXTERNAL_OAUTH_ISSUER = 'https://second.example.com'"
        " EXTERNAL_OAUTH_TOKEN_USER_MAPPING_CLAIM = 'sub'"
        " EXTERNAL_OAUTH_SNOWFLAKE_USER_MAPPING_ATTRIBUTE = 'LOGIN_NAME'"
        f" EXTERNAL_OAUTH_AUDIENCE_LIST = ('{AUDIENCE}') EXTERNAL_OAUTH_ANY_ROLE_MODE = 'ENABLE'"
        f" EXTERNAL_OAUTH_RSA_PUBLIC_KEY = '{key_pair.public_base64}'"
    )
    key = load_pem_private_key(key_pair.private_pem.encode(), None)

    def connect() -> None:
        # Not the one before, which is remembered for seconds.
        new = uuid.uuid4().hex
        mine = token(key, iss="https://second.example.com", scp="session:role-any", jti=new)
        snowmelt.Client(service.url, oauth=mine).close()

    connect()
    service.sql("DROP SECURITY INTEGRATION second")
    with pytest.raises(AuthenticationFailed, match="no enabled security integration"):
        connect()
