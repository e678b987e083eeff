"""Security integrations: OAuth authorization servers, and the mapping of tokens to users.

Names and values are those of Snowflake (TYPE = EXTERNAL_OAUTH).
docs/explanation/decisions/0022-oauth.md lists the
supported ones and the reasons.
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
    """An integration by its name."""

    name: str
    integration: SecurityIntegration
    owner: str
    created_at: dt.datetime


def apply_changes(
    integration: SecurityIntegration, changes: Mapping[str, Any]
) -> SecurityIntegration:
    """Return it with other fields; a key's are `public_key` and `public_key_2`, None to forget it.

    Keys and an address of keys exclude each other: whichever is given now counts.

    Raises:
        UserError: Nothing would be left that signatures are checked with.
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
            "Nothing would be left that signatures are checked with: SET EXTERNAL_OAUTH_JWS_KEYS_URL or "
            "EXTERNAL_OAUTH_RSA_PUBLIC_KEY instead, or SET ENABLED = FALSE."
        )
    return new


def find_integration_by_issuer(
    connection: sa.Connection, issuer: str
) -> SecurityIntegration | None:
    """Return what is known of an issuer, None when nothing is."""
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
    """Return the integration of this internal name. NotFound: there is none."""
    for each in list_security_integrations(connection):
        if each.name == name:
            return each
    raise NotFound(kind="Security integration", name=to_display_name(name))


def update_security_integration(
    connection: sa.Connection, name: str, changes: Mapping[str, Any]
) -> None:
    """Set fields of an integration, see `apply_changes`.

    Raises:
        NotFound: There is none.
        AlreadyExists: Another one has its issuer.
        UserError: Nothing would be left that signatures are checked with.
    """
    # Changes wait for one another, so that none undoes what another has just done.
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
    """Add an integration. AlreadyExists: there is one of that name, or of that issuer."""
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
    """Take no more tokens of an issuer. NotFound: there is no such integration."""
    named = sa.delete(_SECURITY_INTEGRATIONS).where(_SECURITY_INTEGRATIONS.c.name == name)
    if not connection.execute(named).rowcount:
        raise NotFound(kind="Security integration", name=to_display_name(name))
