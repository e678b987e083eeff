"""DESCRIBE INTEGRATION of security integrations, and of those whose kind is not said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.meant_integration import is_security
from snowmelt.catalog.results import Result
from snowmelt.catalog.security_integrations import find_security_integration
from snowmelt.catalog.security_statements import (
    DescribeAnyIntegration,
    DescribeSecurityIntegration,
)
from snowmelt.catalog.showing import show
from snowmelt.catalog.statements import DescribeIntegration

if TYPE_CHECKING:
    from snowmelt.catalog.session import Session

_PRE = "EXTERNAL_OAUTH_"


@show.register(DescribeSecurityIntegration)
def _describe(statement: DescribeSecurityIntegration, session: Session) -> Result:
    session.require_administrator("DESCRIBE SECURITY INTEGRATION")
    made = find_security_integration(session.connection, statement.name).integration
    first, second = [*made.public_keys, None, None][:2]
    rows: tuple[tuple[str, object], ...] = (
        ("ENABLED", made.enabled),
        (_PRE + "TYPE", made.server),
        (_PRE + "ISSUER", made.issuer),
        (_PRE + "JWS_KEYS_URL", made.keys_url),
        (_PRE + "RSA_PUBLIC_KEY", first),
        (_PRE + "RSA_PUBLIC_KEY_2", second),
        (_PRE + "AUDIENCE_LIST", ", ".join(made.audiences)),
        (_PRE + "TOKEN_USER_MAPPING_CLAIM", ", ".join(made.user_claims)),
        (_PRE + "SNOWFLAKE_USER_MAPPING_ATTRIBUTE", "LOGIN_NAME"),
        (_PRE + "SCOPE_MAPPING_ATTRIBUTE", made.scope_claim),
        (_PRE + "ANY_ROLE_MODE", "ENABLE" if made.any_role else "DISABLE"),
        (_PRE + "BLOCKED_ROLES_LIST", ", ".join(made.blocked_roles)),
        ("COMMENT", made.comment),
    )
    return Result(("property", "value"), rows)


@show.register(DescribeAnyIntegration)
def _describe_any(statement: DescribeAnyIntegration, session: Session) -> Result:
    if is_security(session, statement.name):
        return show(DescribeSecurityIntegration(statement.name), session)
    return show(DescribeIntegration(statement.name), session)
