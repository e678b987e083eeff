"""Statements about API integrations; secrets are named, never written."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.cursor import CreateMode, NameLevel
from snowmelt.catalog.statements.executor import LISTINGS, parse_statement
from snowmelt.catalog.statements.grants import GrantOnAccount, GrantOnIntegration, PrivilegeGrant
from snowmelt.catalog.statements.integrations import (
    AlterIntegration,
    CreateIntegration,
    DescribeIntegration,
    DropIntegration,
)
from snowmelt.catalog.statements.statement_context import ShowObjects
from snowmelt.errors import StatementError
from snowmelt.functions.definition import AuthenticationMethod

HEAD = "CREATE API INTEGRATION i API_PROVIDER = http API_ALLOWED_PREFIXES = ('https://h/') "


def refusal(text: str) -> tuple[str, int]:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    return str(caught.value.fields["reason"]), int(str(caught.value.fields["column"]))


def test_the_published_example_is_read() -> None:
    statement = parse_statement(
        """create or replace api integration demonstration_external_api_integration_01
             api_provider=aws_api_gateway
             api_aws_role_arn='arn:aws:iam::123456789012:role/my_cloud_account_role'
             api_allowed_prefixes=('https://xyz.execute-api.us-west-2.amazonaws.com/production')
             enabled=true;"""
    )
    assert isinstance(statement, CreateIntegration)
    assert statement.create_mode is CreateMode.OR_REPLACE
    made = statement.integration
    assert made.name == "DEMONSTRATION_EXTERNAL_API_INTEGRATION_01"
    assert made.provider == "aws_api_gateway"
    assert made.aws_role_arn == "arn:aws:iam::123456789012:role/my_cloud_account_role"
    assert made.allowed_prefixes == ("https://xyz.execute-api.us-west-2.amazonaws.com/production",)
    assert made.enabled


def test_every_clause_is_kept() -> None:
    statement = parse_statement(
        "CREATE API INTEGRATION IF NOT EXISTS i ENABLED = FALSE, AUTHENTICATION = BASIC "
        "USER = 'u' SECRET = 'file:/run/secrets/p' API_KEY 'env:KEY' REGION = 'r' CA_FILE = '/c' "
        "API_BLOCKED_PREFIXES = ('https://h/a', 'https://h/b') API_PROVIDER = \"HTTP\" "
        "API_ALLOWED_PREFIXES = ('https://h/') COMMENT = 'c' AZURE_TENANT_ID = 't' "
        "AZURE_AD_APPLICATION_ID = 'a' GOOGLE_AUDIENCE = 'g'"
    )
    assert isinstance(statement, CreateIntegration)
    made = statement.integration
    assert (made.enabled, made.authentication) == (False, AuthenticationMethod.BASIC)
    assert (made.user, made.secret, made.api_key) == ("u", "file:/run/secrets/p", "env:KEY")
    assert (made.region, made.ca_file, made.comment) == ("r", "/c", "c")
    assert made.blocked_prefixes == ("https://h/a", "https://h/b")
    assert (made.azure_tenant_id, made.azure_ad_application_id) == ("t", "a")
    assert made.google_audience == "g"
    made.validate()


@pytest.mark.parametrize("word", ["API_KEY", "SECRET"])
@pytest.mark.parametrize(
    "value", ["'hunter2'", "hunter2", '"hunter2"', "'env:hunter 2'", "'file:'"]
)
def test_a_secret_itself_is_refused_and_not_repeated(word: str, value: str) -> None:
    told, column = refusal(f"{HEAD}{word} = {value}")
    assert told.startswith(f"{word} must be a reference to the secret")
    assert "hunter" not in told
    assert column == len(HEAD) + len(word) + 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE API INTEGRATION i", "API_PROVIDER is missing"),
        ("CREATE API INTEGRATION i API_PROVIDER = http", "API_ALLOWED_PREFIXES is missing"),
        ("CREATE API INTEGRATION i API_PROVIDER = ftp", "API_PROVIDER must be AWS_API_GATEWAY, "),
        (
            "CREATE API INTEGRATION i API_ALLOWED_PREFIXES = ('h')",
            "API_ALLOWED_PREFIXES: The URL does not begin with https://",
        ),
        (
            "CREATE API INTEGRATION i API_BLOCKED_PREFIXES = ('https://h/?a')",
            "API_BLOCKED_PREFIXES: The URL has a query",
        ),
        (HEAD + "ENABLED = MAYBE", "Expected TRUE or FALSE here, not MAYBE"),
        (HEAD + "AUTHENTICATION = OAUTH", "AUTHENTICATION must be NONE, BASIC, BEARER or SIGV4"),
        (HEAD + "COLOUR = 'x'", "COLOUR is not a clause of an API integration. Valid clauses:"),
        (HEAD + "USER = 'x' USER = 'y'", "USER is given twice"),
        ("ALTER INTEGRATION i UNSET API_PROVIDER", "API_PROVIDER cannot be UNSET"),
        ("ALTER INTEGRATION i SET", "Expected a clause of ALTER INTEGRATION here"),
        ("DROP INTEGRATION i CASCADE", "Expected the end of the statement after DROP INTEGRATION"),
        ("GRANT SELECT ON INTEGRATION i TO ROLE r", "SELECT cannot be granted on a integration"),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_sentence(text: str, reason: str) -> None:
    assert refusal(text)[0].startswith(reason)


def test_what_is_said_of_an_api_integration_is_read() -> None:
    assert parse_statement("DROP API INTEGRATION IF EXISTS i") == DropIntegration(
        "I", if_exists=True
    )
    assert parse_statement("DESC API INTEGRATION i;") == DescribeIntegration("I")
    assert parse_statement("ALTER API INTEGRATION i SET ENABLED = FALSE, COMMENT = 'x'") == (
        AlterIntegration("I", {"enabled": False, "comment": "x"}, if_exists=False)
    )
    assert parse_statement("ALTER API INTEGRATION i UNSET API_KEY, API_BLOCKED_PREFIXES") == (
        AlterIntegration("I", {"api_key": None, "blocked_prefixes": ()}, if_exists=False)
    )


@pytest.mark.parametrize("api", ["", "API "])
def test_grants_and_lists_do_without_the_word_api(api: str) -> None:
    assert parse_statement(f"GRANT USAGE ON {api}INTEGRATION i TO ROLE r") == GrantOnIntegration(
        PrivilegeGrant(("USAGE",), "R", revoke=False), "I"
    )
    assert parse_statement(f"SHOW {api}INTEGRATIONS LIKE 'a%'") == ShowObjects(
        LISTINGS[f"{api}INTEGRATIONS"], "a%", NameLevel.ACCOUNT
    )


def test_roles_may_be_let_to_create_integrations() -> None:
    assert parse_statement("REVOKE CREATE INTEGRATION ON ACCOUNT FROM ROLE r") == GrantOnAccount(
        PrivilegeGrant(("CREATE INTEGRATION",), "R", revoke=True)
    )
