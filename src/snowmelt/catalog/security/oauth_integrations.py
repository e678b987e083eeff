"""Security integrations: OAuth authorization servers, and the mapping of tokens to users.

Clauses and their values follow Snowflake (TYPE = EXTERNAL_OAUTH). The supported ones and the
reasons are listed in docs/explanation/decisions/0022-oauth.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import make_record
from snowmelt.catalog.model.records import SecurityIntegration
from snowmelt.errors import AlreadyExists, NotFound, UserError
from snowmelt.schema.types import to_display_name

_SECURITY_INTEGRATIONS = model.security_integrations


@dataclass(frozen=True, slots=True)
class SecurityIntegrationRecord:
    """An integration with its name."""

    name: str
    integration: SecurityIntegration
    owner: str
    created_at: dt.datetime


def apply_changes(
    integration: SecurityIntegration, changes: Mapping[str, Any]
) -> SecurityIntegration:
    """Return a copy of an integration with changed fields.

    `changes` may include `public_key` and `public_key_2`; None clears one. An integration has
    either public keys or a URL of keys: setting one clears the other.

    Raises:
        UserError: If neither keys nor a URL of keys is left.
    """
    fields = dict(changes)
    keys = [*integration.public_keys, None, None][:2]
    for place, field in enumerate(("public_key", "public_key_2")):
        if field in fields:
            keys[place] = fields.pop(field)
            if keys[place] is not None:
                fields["keys_url"] = None
    if fields.get("keys_url") is not None:
        keys = [None, None]
    new = msgspec.structs.replace(integration, public_keys=tuple(keys), **fields)
    if new.keys_url is None and not new.configured_keys:
        raise UserError(
            "The integration would have no keys to verify signatures: SET EXTERNAL_OAUTH_JWS_KEYS_URL or "
            "EXTERNAL_OAUTH_RSA_PUBLIC_KEY instead, or SET ENABLED = FALSE."
        )
    return new


def find_integration_by_issuer(
    connection: sa.Connection, issuer: str
) -> SecurityIntegration | None:
    """Return the integration of an issuer, or None if there is none."""
    query = sa.select(_SECURITY_INTEGRATIONS.c.definition).where(
        _SECURITY_INTEGRATIONS.c.issuer == issuer
    )
    text = connection.execute(query).scalar()
    return None if text is None else msgspec.json.decode(text, type=SecurityIntegration)


def list_security_integrations(connection: sa.Connection) -> list[SecurityIntegrationRecord]:
    """Return all integrations, ordered by name."""
    query = sa.select(_SECURITY_INTEGRATIONS).order_by(_SECURITY_INTEGRATIONS.c.name)
    return [
        make_record(
            SecurityIntegrationRecord,
            row,
            integration=msgspec.json.decode(row.definition, type=SecurityIntegration),
        )
        for row in connection.execute(query)
    ]


def find_security_integration(connection: sa.Connection, name: str) -> SecurityIntegrationRecord:
    """Return the integration of this internal name.

    Raises:
        NotFound: If it does not exist.
    """
    for each in list_security_integrations(connection):
        if each.name == name:
            return each
    raise NotFound(kind="Security integration", name=to_display_name(name))


def update_security_integration(
    connection: sa.Connection, name: str, changes: Mapping[str, Any]
) -> None:
    """Change fields of an integration as `apply_changes` does.

    Raises:
        NotFound: If it does not exist.
        AlreadyExists: If another integration has the issuer.
        UserError: If neither keys nor a URL of keys is left.
    """
    # The lock serializes changes, so that no update is lost.
    connection.execute(
        sa.select(_SECURITY_INTEGRATIONS.c.name)
        .where(_SECURITY_INTEGRATIONS.c.name == name)
        .with_for_update()
    )
    integration = apply_changes(find_security_integration(connection, name).integration, changes)
    taken = sa.select(_SECURITY_INTEGRATIONS.c.name).where(
        _SECURITY_INTEGRATIONS.c.issuer == integration.issuer, _SECURITY_INTEGRATIONS.c.name != name
    )
    there = connection.execute(taken).scalar()
    if there is not None:
        raise AlreadyExists(kind="Security integration", name=to_display_name(there))
    connection.execute(
        sa.update(_SECURITY_INTEGRATIONS)
        .where(_SECURITY_INTEGRATIONS.c.name == name)
        .values(issuer=integration.issuer, definition=msgspec.json.encode(integration).decode())
    )


def create_security_integration(
    connection: sa.Connection, record: SecurityIntegrationRecord, *, replace: bool
) -> None:
    """Create an integration.

    Raises:
        AlreadyExists: If an integration with this name or issuer exists.
    """
    if replace:
        connection.execute(
            sa.delete(_SECURITY_INTEGRATIONS).where(_SECURITY_INTEGRATIONS.c.name == record.name)
        )
    taken = sa.or_(
        _SECURITY_INTEGRATIONS.c.name == record.name,
        _SECURITY_INTEGRATIONS.c.issuer == record.integration.issuer,
    )
    there = connection.execute(sa.select(_SECURITY_INTEGRATIONS.c.name).where(taken)).scalar()
    if there is not None:
        raise AlreadyExists(kind="Security integration", name=to_display_name(there))
    connection.execute(
        sa.insert(_SECURITY_INTEGRATIONS).values(
            name=record.name,
            issuer=record.integration.issuer,
            definition=msgspec.json.encode(record.integration).decode(),
            owner=record.owner,
            created_at=record.created_at,
        )
    )


def drop_security_integration(connection: sa.Connection, name: str) -> None:
    """Drop an integration. Tokens of its issuer are then rejected.

    Raises:
        NotFound: If it does not exist.
    """
    named = sa.delete(_SECURITY_INTEGRATIONS).where(_SECURITY_INTEGRATIONS.c.name == name)
    if not connection.execute(named).rowcount:
        raise NotFound(kind="Security integration", name=to_display_name(name))
