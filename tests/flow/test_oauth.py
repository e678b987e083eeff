"""OAuth: tokens of an external authorization server open channels with the role in the token."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

import snowmelt
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import (
    AlreadyExists,
    AuthenticationFailed,
    PrivilegeMissing,
    RoleNotGranted,
    UserError,
)
from support.authorization_server import AUDIENCE, ISSUER, AuthorisationServer, integration, token

STRANGERS_KEY = rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def idp() -> Iterator[AuthorisationServer]:
    server = AuthorisationServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def service(
    shared_service: ServiceProcess, key_pair: KeyPair, idp: AuthorisationServer
) -> ServiceProcess:
    prepare_loading(shared_service, key_pair, "oauth")
    shared_service.sql(integration(idp))
    return shared_service


def test_rows_come_in_with_a_token_that_is_refreshed(
    service: ServiceProcess, idp: AuthorisationServer
) -> None:
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


def test_a_token_names_the_roles(service: ServiceProcess) -> None:
    given = lambda: token(scp="session:role:public session:role:loading")  # noqa: E731
    with (
        snowmelt.Client(service.url, oauth=given, role="loading") as client,
        client.open_channel("given", table="oauth.public.t"),
    ):
        pass
    with pytest.raises(RoleNotGranted, match="does not allow role ACCOUNTADMIN"):
        snowmelt.Client(service.url, oauth=given, role="accountadmin")


def test_columns_are_added_as_a_role_of_the_token_only(service: ServiceProcess) -> None:
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
        timeout=60,
    )
    assert answer.json()["error"] == "role_not_granted"
    assert "does not allow role SHAPING" in answer.text


def test_a_token_for_a_role_gives_no_other_role(service: ServiceProcess) -> None:
    service.sql("CREATE ROLE IF NOT EXISTS loading", 'CREATE ROLE IF NOT EXISTS "loading"')
    service.sql('GRANT ROLE "loading" TO USER loader')

    def run(statement: str, role: str | None = None) -> httpx.Response:
        return httpx.post(
            f"{service.url}/api/v2/statements",
            json={"statement": statement, "role": role},
            headers={
                "Authorization": f"Bearer {token(scp='session:role:loading')}",
                "X-Snowflake-Authorization-Token-Type": "OAUTH",
            },
            timeout=60,
        )

    assert run("SHOW GRANTS TO ROLE loading").status_code == 200
    # An access key has all roles of its user.
    assert run("ALTER USER loader ADD ACCESS KEY").json()["error"] == "privilege_missing"
    # The quoted role is another one.
    assert run("SHOW ROLES", "loading").json()["error"] == "role_not_granted"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://elsewhere.example.com"}, "an enabled security integration"),
        ({"aud": "https://other.example.com"}, "another audience"),
        ({"key": STRANGERS_KEY}, "signature is invalid"),
        ({"kid": "unknown"}, "signature is invalid"),
        ({"exp": 1_000_000}, "expired"),
        ({"sub": "nobody"}, "is not the name of a user"),
        ({"scp": ["session:role:accountadmin"]}, "no scope session:role"),
        ({"scp": ["session:role-any"]}, "no scope session:role"),
        ({"scp": "openid"}, "no scope session:role"),
    ],
)
def test_a_token_that_does_not_hold_is_refused(
    service: ServiceProcess, changed: Any, reason: str
) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        snowmelt.Client(service.url, oauth=token(**changed))


def test_whose_tokens_are_taken_is_the_administrators(service: ServiceProcess) -> None:
    for kind in ("SECURITY ", ""):
        assert [row[0] for row in service.sql(f"SHOW {kind}INTEGRATIONS").rows] == ["IDP"]
    settings = service.settings
    with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as database:
        with pytest.raises(PrivilegeMissing):
            execute_statement(database, "DROP SECURITY INTEGRATION idp", user="LOADER")
        assert not execute_statement(database, "SHOW SECURITY INTEGRATIONS", user="LOADER").rows


def test_an_integration_is_changed_and_dropped(service: ServiceProcess, key_pair: KeyPair) -> None:
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
        # Use a new token, because the previous one is cached for seconds.
        new = uuid.uuid4().hex
        mine = token(key, iss="https://second.example.com", scp="session:role-any", jti=new)
        snowmelt.Client(service.url, oauth=mine).close()

    connect()
    strangers = STRANGERS_KEY.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    shown = base64.b64encode(strangers).decode()
    for change, reason in [
        (f"SET EXTERNAL_OAUTH_RSA_PUBLIC_KEY_2 = '{shown}'", None),
        ("UNSET EXTERNAL_OAUTH_RSA_PUBLIC_KEY", "signature is invalid"),
        (f"SET EXTERNAL_OAUTH_RSA_PUBLIC_KEY = '{key_pair.public_base64}'", None),
        ("SET ENABLED = FALSE", "an enabled security integration"),
        ("SET ENABLED = TRUE", None),
    ]:
        service.sql(f"ALTER SECURITY INTEGRATION second {change}")
        with (
            pytest.raises(AuthenticationFailed, match=reason)
            if reason
            else contextlib.nullcontext()
        ):
            connect()
    service.sql("ALTER INTEGRATION second SET EXTERNAL_OAUTH_JWS_KEYS_URL = 'http://127.0.0.1:9/'")
    described: dict[str, Any] = dict(cast("Any", service.sql("DESCRIBE INTEGRATION second").rows))
    assert described["EXTERNAL_OAUTH_JWS_KEYS_URL"] == "http://127.0.0.1:9/"
    assert described["EXTERNAL_OAUTH_RSA_PUBLIC_KEY"] is None
    assert described["EXTERNAL_OAUTH_TYPE"] == "OKTA"
    with pytest.raises(UserError, match="would have no keys"):
        service.sql("ALTER INTEGRATION second UNSET EXTERNAL_OAUTH_JWS_KEYS_URL")
    with pytest.raises(AlreadyExists, match="IDP"):
        service.sql(f"ALTER INTEGRATION second SET EXTERNAL_OAUTH_ISSUER = '{ISSUER}'")
    service.sql("DROP INTEGRATION second")
    with pytest.raises(AuthenticationFailed, match="an enabled security integration"):
        connect()
