"""Statements about security integrations, with and without the kind."""

from __future__ import annotations

import pytest

from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.catalog.statements.integrations import (
    AlterIntegration,
    AlterOrDropAnyIntegration,
    AlterSecurityIntegration,
    DescribeAnyIntegration,
    DescribeSecurityIntegration,
    DropIntegration,
    DropSecurityIntegration,
)
from snowmelt.errors import StatementError


def test_fields_are_set_and_unset() -> None:
    assert parse_statement(
        "ALTER SECURITY INTEGRATION IF EXISTS okta SET ENABLED = FALSE, EXTERNAL_OAUTH_TYPE = AZURE "
        "EXTERNAL_OAUTH_BLOCKED_ROLES_LIST = ('loading') EXTERNAL_OAUTH_ANY_ROLE_MODE = ENABLE;"
    ) == AlterSecurityIntegration(
        "OKTA",
        {
            "enabled": False,
            "server": "AZURE",
            "blocked_roles": ("ACCOUNTADMIN", "LOADING"),
            "any_role": True,
        },
        if_exists=True,
    )
    assert parse_statement(
        "ALTER SECURITY INTEGRATION okta UNSET COMMENT, EXTERNAL_OAUTH_BLOCKED_ROLES_LIST, "
        "EXTERNAL_OAUTH_ANY_ROLE_MODE, EXTERNAL_OAUTH_RSA_PUBLIC_KEY_2"
    ) == AlterSecurityIntegration(
        "OKTA",
        {
            "comment": None,
            "blocked_roles": ("ACCOUNTADMIN",),
            "any_role": False,
            "public_key_2": None,
        },
        if_exists=False,
    )
    assert parse_statement("DESC SECURITY INTEGRATION okta") == DescribeSecurityIntegration("OKTA")


def test_without_the_kind_a_statement_says_what_it_can_of_either() -> None:
    assert parse_statement("ALTER INTEGRATION i SET ENABLED = TRUE") == AlterOrDropAnyIntegration(
        "I",
        AlterIntegration("I", {"enabled": True}, if_exists=False),
        AlterSecurityIntegration("I", {"enabled": True}, if_exists=False),
    )
    changed = parse_statement("ALTER INTEGRATION i SET EXTERNAL_OAUTH_AUDIENCE_LIST = 'https://a'")
    assert changed == AlterOrDropAnyIntegration(
        "I", None, AlterSecurityIntegration("I", {"audiences": ("https://a",)}, if_exists=False)
    )
    assert parse_statement("DROP INTEGRATION IF EXISTS i") == AlterOrDropAnyIntegration(
        "I", DropIntegration("I", if_exists=True), DropSecurityIntegration("I", if_exists=True)
    )
    assert parse_statement("DESCRIBE INTEGRATION i") == DescribeAnyIntegration("I")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ALTER SECURITY INTEGRATION i UNSET ENABLED", "ENABLED cannot be UNSET"),
        (
            "ALTER SECURITY INTEGRATION i SET EXTERNAL_OAUTH_JWS_KEYS_URL = 'http://far'",
            "The URL of keys must begin with https://",
        ),
        # The kind that understands more of it says what is wrong.
        (
            "ALTER INTEGRATION i SET EXTERNAL_OAUTH_ISSUER = 'i' COLOUR = 1",
            "COLOUR is not a clause of a security integration",
        ),
        ("ALTER INTEGRATION i SET API_KEY = 'k' ", "API_KEY must be a reference"),
        (
            "DROP SECURITY INTEGRATION i CASCADE",
            "Expected the end of the statement after DROP SECURITY INTEGRATION",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    assert str(caught.value.fields["reason"]).startswith(reason)
