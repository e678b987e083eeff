"""Login to the console: by access key, by code of `snowmelt console`, or none on this machine."""

from __future__ import annotations

import logging
import secrets

import jwt
import sqlalchemy as sa

from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.catalog.security.encryption_keys import ConsoleToken, find_access_key
from snowmelt.errors import AuthenticationFailed
from snowmelt.schema.types import to_internal_name
from snowmelt.server.console.layout import MOUNT_PATH, ConsolePage, href
from snowmelt.server.console.markup import EMPTY, Html, tag
from snowmelt.server.console.request import ConsoleParts
from snowmelt.server.console.sessions import OPEN_USER, Sessions, has_users

_log = logging.getLogger("snowmelt.audit")


def is_open(parts: ConsoleParts, connection: sa.Connection) -> bool:
    """Return True if the console needs no login: on loopback, with --dev or before any user has a key."""
    if not parts.settings.listens_on_loopback or parts.settings.public_host_names:
        return False
    return parts.settings.dev or not has_users(connection)


def begin_open_session(sessions: Sessions) -> ConsoleToken:
    """Return a session without a user."""
    return sessions.begin(OPEN_USER, ACCOUNTADMIN, OPEN_USER)


def log_in_with_key(
    parts: ConsoleParts, sessions: Sessions, fields: dict[str, str]
) -> ConsoleToken:
    """Return a session for an access key and its secret.

    Raises:
        AuthenticationFailed: If key or secret is wrong, or a service on a network has no TLS.
        RoleNotGranted: If the user does not have the role.
    """
    if not (parts.settings.listens_on_loopback or parts.settings.tls_cert):
        raise AuthenticationFailed(
            reason="the service has no TLS, and others on the network could read the secret. Set"
            " tls_cert and tls_key, or run `snowmelt console` on the machine of the service"
        )
    key_id, secret = fields.get("key", "").strip(), fields.get("secret", "").strip()
    with parts.database.reading() as connection:
        key = find_access_key(connection, parts.keyring, key_id)
        if key is None or not secrets.compare_digest(key.secret.encode(), secret.encode()):
            _log.warning("console: login with access key %r rejected", key_id[:80])
            raise AuthenticationFailed(reason="there is no access key with this ID and secret")
        wanted = fields.get("role", "").strip()
        role = resolve_effective_role(
            connection, key.user, to_internal_name(wanted) if wanted else None
        )
    _log.info("console: user %s logged in with access key %s as %s", key.user, key_id, role)
    return sessions.begin(key.user, role, key_id)


def find_credential(authorization: str, token_type: str) -> str:
    """Return the key fingerprint or access key ID of an already verified token.

    Raises:
        AuthenticationFailed: If the token is neither a key-pair JWT nor an access key.
    """
    token = authorization.partition(" ")[2].strip()
    if token_type == "PROGRAMMATIC_ACCESS_TOKEN":  # noqa: S105 - a kind of token
        return token.partition(".")[0]
    if token_type == "KEYPAIR_JWT":  # noqa: S105 - a kind of token
        claims = jwt.decode(token, options={"verify_signature": False})
        return str(claims["iss"])[len(str(claims["sub"])) + 1 :]
    raise AuthenticationFailed(
        reason="the console accepts key pairs and access keys, but not OAuth tokens. Create an"
        " access key"
    )


def make_login_page(error: str | None, target: str) -> ConsolePage:
    """Return the login page. After the login, the browser is redirected to `target`."""
    failure = tag("p", error, class_="error", role="alert") if error else EMPTY
    next_field = tag("input", type="hidden", name="next", value=target)
    by_key = tag(
        "form",
        next_field,
        _field("key", "Access key ID", autocomplete="username"),
        _field("secret", "Secret", type="password", autocomplete="current-password"),
        _field("role", "Role (empty: the user's default)"),
        tag("button", "Log in"),
        method="post",
        action=href("/login"),
    )
    by_code = tag(
        "form",
        next_field,
        _field("code", "Code of `snowmelt console --print`", id="login-code", autocomplete="off"),
        tag("button", "Use the code"),
        method="post",
        action=href("/login"),
    )
    hint = tag(
        "pre",
        tag(
            "code",
            "snowmelt console --user NAME --private-key NAME.pem\n"
            "snowmelt user access-key NAME      # an ID and secret for this form",
        ),
    )
    box = tag(
        "div",
        failure,
        tag("h2", "With an access key"),
        by_key,
        tag("h2", "With a key pair"),
        tag("p", "This command opens a browser that is logged in:"),
        hint,
        by_code,
        class_="login",
    )
    return ConsolePage("Log in", "Who are you?", [box], status=401 if error else 200)


def local_target(target: str) -> str:
    """Return `target` if it is a path of the console, else the path of the overview."""
    is_ours = target == MOUNT_PATH or target.startswith((f"{MOUNT_PATH}/", f"{MOUNT_PATH}?"))
    unsafe = "\\" in target or any(ord(each) < ord(" ") for each in target)
    return target if is_ours and not unsafe else f"{MOUNT_PATH}/"


def _field(name: str, label: str, **attributes: str) -> Html:
    return tag(
        "label", tag("span", label), tag("input", name=name, **({"type": "text"} | attributes))
    )
