"""External functions in the catalog, on every database: who may do what, and what calls find."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.external_functions import (
    CallableFunction,
    FunctionName,
    list_callable_functions,
    list_external_functions,
    list_usable_functions,
)
from snowmelt.catalog.sql.lexer import split_script
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.statements.external_functions import REDACTED
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    AlreadyExists,
    NotFound,
    PrivilegeMissing,
    SchemaNotFound,
    StatementError,
    UserError,
)
from snowmelt.functions.definition import RequestCompression, TranslatorLanguage
from snowmelt.functions.errors import DeclarationInvalid, IntegrationDisabled

if TYPE_CHECKING:
    from sqlalchemy import Connection


NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
ECHO = FunctionName("DEMO", "PUBLIC", "ECHO")
AUTHOR, CALLER = {"role": "AUTHOR"}, {"role": "CALLER"}
CREATE_ECHO = (
    "CREATE EXTERNAL FUNCTION demo.public.echo(n INTEGER) RETURNS VARCHAR "
    "API_INTEGRATION = gateway AS 'https://h/f/echo'"
)


def find_callable_function(
    connection: Connection, role: str, name: FunctionName, argument_count: int
) -> CallableFunction:
    found = list_callable_functions(connection, role, name)
    signatures = [each.function.signature for each in found]
    [at] = [
        at
        for at, each in enumerate(signatures)
        if each.min_arguments <= argument_count <= len(each.arguments)
    ]
    return found[at]


@pytest.fixture
def run(database: Database) -> Callable[..., StatementResult]:
    def statement(text: str, **who: Any) -> StatementResult:
        return execute_statement(database, text, clock=ManualClock(NOW), **who)

    return statement


@pytest.fixture
def demo(run: Any) -> Any:
    """A database, an integration, and roles that may do nothing yet."""
    run("CREATE DATABASE demo")
    run(
        "CREATE API INTEGRATION gateway API_PROVIDER = http API_ALLOWED_PREFIXES = ('https://h/f') "
        "API_BLOCKED_PREFIXES = ('https://h/f/admin') API_KEY = 'env:GATEWAY_KEY' ENABLED = TRUE"
    )
    run("CREATE ROLE author")
    run("CREATE ROLE caller")
    return run


@pytest.fixture
def shared(demo: Any) -> Any:
    """Both roles may use the schema, AUTHOR may create functions in it."""
    for role in ("author", "caller"):
        demo(f"GRANT USAGE ON DATABASE demo TO ROLE {role}")
        demo(f"GRANT USAGE ON SCHEMA demo.public TO ROLE {role}")
    demo("GRANT CREATE FUNCTION ON SCHEMA demo.public TO ROLE author")
    demo("GRANT USAGE ON INTEGRATION gateway TO ROLE author")
    return demo


def properties(result: Any) -> dict[str, object]:
    return dict(result.rows)


def names(result: Any) -> list[object]:
    at = result.columns.index("name")
    return [row[at] for row in result.rows]


def test_a_function_is_created_shown_described_and_dropped(demo: Any) -> None:
    assert demo(CREATE_ECHO).message == "Function DEMO.PUBLIC.ECHO(NUMBER) created."
    shown = demo("SHOW EXTERNAL FUNCTIONS LIKE 'e%' IN SCHEMA demo.public")
    row = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert row["arguments"] == "ECHO(NUMBER) RETURN VARCHAR"
    assert (row["created_on"], row["url"], row["owner"]) == (
        NOW,
        "https://h/f/echo",
        "ACCOUNTADMIN",
    )
    described = properties(demo("DESCRIBE FUNCTION demo.public.echo(INT)"))
    assert described["signature"] == "(N NUMBER(38,0))"
    assert described["body"] == "https://h/f/echo"
    assert demo("DROP FUNCTION demo.public.echo(NUMBER)").message.endswith("dropped.")
    assert demo("SHOW FUNCTIONS").rows == ()
    with pytest.raises(NotFound, match=r"ECHO\(NUMBER\) does not exist"):
        demo("DESCRIBE FUNCTION demo.public.echo(INT)")
    assert "Nothing was done" in demo("DROP FUNCTION IF EXISTS demo.public.echo(INT)").message
    assert "Nothing was done" in demo("DROP FUNCTION IF EXISTS demo.nowhere.echo(INT)").message


def test_what_the_documentation_says_runs(demo: Any) -> None:
    demo(CREATE_ECHO.replace("echo(n INTEGER)", "place(city VARCHAR, k NUMBER)"))
    page = (
        Path(__file__).parents[2] / "docs" / "reference" / "external-function-rules.md"
    ).read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        for piece in split_script(block):
            demo(piece.text, default_database="demo")
    shown = properties(demo("DESCRIBE FUNCTION demo.public.place(VARCHAR, NUMBER)"))
    assert shown["request_translator"] == "DEMO.PUBLIC.WRAPPED"


def test_create_twice_is_refused_kept_replaced_or_altered_as_asked(
    demo: Any, database: Database
) -> None:
    demo(CREATE_ECHO)
    with pytest.raises(AlreadyExists, match=r"ECHO\(NUMBER\) already exists"):
        demo(CREATE_ECHO)
    kept = demo(CREATE_ECHO.replace("FUNCTION", "FUNCTION IF NOT EXISTS"))
    assert kept.message == "Function DEMO.PUBLIC.ECHO(NUMBER) already exists; nothing was done."
    other = CREATE_ECHO.replace(" AS ", " COMPRESSION = GZIP AS ")
    with database.reading() as connection:
        (first,) = list_external_functions(connection)
    demo(other.replace("CREATE", "CREATE OR ALTER"))
    with database.reading() as connection:
        (altered,) = list_external_functions(connection)
    assert altered.function_id == first.function_id
    assert altered.function.compression is RequestCompression.GZIP
    demo(CREATE_ECHO.replace("CREATE", "CREATE OR REPLACE"))
    with database.reading() as connection:
        (replaced,) = list_external_functions(connection)
    assert replaced.function_id != first.function_id
    assert replaced.function == first.function


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("VARCHAR", "DATE"), "signature"),
        (("f/echo", "f/other"), "url"),
        (("VARCHAR", "VARCHAR NOT NULL"), "returns null"),
        (("VARCHAR", "VARCHAR STRICT"), "null input"),
        (("VARCHAR", "VARCHAR IMMUTABLE"), "volatility"),
    ],
)
def test_or_alter_leaves_alone_what_callers_count_on(
    demo: Any, change: tuple[str, str], field: str
) -> None:
    demo(CREATE_ECHO)
    with pytest.raises(StatementError, match=f"OR ALTER cannot change the {field}"):
        demo(CREATE_ECHO.replace("CREATE", "CREATE OR ALTER").replace(*change))


def test_a_cache_is_for_functions_whose_values_stay(demo: Any) -> None:
    with pytest.raises(StatementError, match=r"CACHE requires an IMMUTABLE function.*column 70"):
        demo(CREATE_ECHO.replace("API_", "CACHE = 9 API_"))
    demo(CREATE_ECHO.replace("API_", "CACHE = OFF API_"))
    with pytest.raises(StatementError, match="CACHE requires an IMMUTABLE function"):
        demo("ALTER FUNCTION demo.public.echo(INT) SET CACHE = 9")


def test_or_alter_creates_what_is_not_there(demo: Any) -> None:
    created = demo(CREATE_ECHO.replace("CREATE", "CREATE OR ALTER"))
    assert created.message == "Function DEMO.PUBLIC.ECHO(NUMBER) created."


def test_overloads_differ_in_their_number_of_arguments(demo: Any, database: Database) -> None:
    demo(CREATE_ECHO)
    for arguments in ("s VARCHAR", "s VARCHAR, k INT DEFAULT 1", "s VARCHAR DEFAULT 'x'"):
        with pytest.raises(AlreadyExists, match="both could be called with 1 argument"):
            demo(CREATE_ECHO.replace("n INTEGER", arguments))
    demo(CREATE_ECHO.replace("n INTEGER", ""))
    demo(CREATE_ECHO.replace("n INTEGER", "a DATE, b DATE, c INT DEFAULT 1"))
    with pytest.raises(AlreadyExists, match="exists"):
        demo("CREATE FUNCTION demo.public.echo(e OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS ''")
    with database.reading() as connection:
        found = list_callable_functions(connection, "ACCOUNTADMIN", ECHO)
        assert [len(each.function.signature.arguments) for each in found] == [0, 1, 3]
        three = find_callable_function(connection, "ACCOUNTADMIN", ECHO, 2)
        assert len(three.function.signature.arguments) == 3
    with pytest.raises(
        NotFound,
        match=r"Functions with this name: DEMO.PUBLIC.ECHO\(\), DEMO.PUBLIC.ECHO\(NUMBER\)",
    ):
        demo("DROP FUNCTION demo.public.echo(VARCHAR)")


def test_a_url_must_lie_within_what_the_integration_allows(demo: Any) -> None:
    for url in ("https://h/fx", "https://h/f/admin/x", "http://h/f/x", "https://other/f/"):
        with pytest.raises(StatementError, match=r"AS: The URL .* of GATEWAY.* \(line 1, column"):
            demo(CREATE_ECHO.replace("https://h/f/echo", url))
    demo(CREATE_ECHO)
    demo("CREATE API INTEGRATION other API_PROVIDER = http API_ALLOWED_PREFIXES = ('https://x')")
    with pytest.raises(StatementError, match="under none of the API_ALLOWED_PREFIXES of OTHER"):
        demo("ALTER FUNCTION demo.public.echo(INT) SET API_INTEGRATION = other")
    with pytest.raises(NotFound, match="API integration NOWHERE does not exist"):
        demo("ALTER FUNCTION demo.public.echo(INT) SET API_INTEGRATION = nowhere")


def test_alter_changes_what_it_names_and_unset_undoes_it(demo: Any, database: Database) -> None:
    demo(CREATE_ECHO)
    demo("ALTER FUNCTION demo.public.echo(INT) SET SECURE MAX_BATCH_ROWS = 5, COMMENT = 'x'")
    described = properties(demo("DESCRIBE FUNCTION demo.public.echo(INT)"))
    assert (described["max_batch_rows"], described["comment"]) == (5, "x")
    assert described["is_secure"] is True
    demo("ALTER FUNCTION demo.public.echo(INT) UNSET SECURE, MAX_BATCH_ROWS, COMMENT")
    described = properties(demo("DESCRIBE FUNCTION demo.public.echo(INT)"))
    assert described["max_batch_rows"] is None
    assert described["comment"] == "user-defined function"
    assert "Nothing" in demo("ALTER FUNCTION IF EXISTS demo.public.no(INT) SET SECURE").message


def test_a_renamed_function_is_called_by_its_new_name(demo: Any, database: Database) -> None:
    demo(CREATE_ECHO)
    demo(CREATE_ECHO.replace("public.echo", "public.taken"))
    with pytest.raises(AlreadyExists):
        demo("ALTER FUNCTION demo.public.echo(INT) RENAME TO taken")
    renamed = demo("ALTER FUNCTION demo.public.echo(INT) RENAME TO newName")
    assert renamed.message.endswith("renamed to DEMO.PUBLIC.NEWNAME(NUMBER).")
    with database.reading() as connection:
        found = find_callable_function(
            connection, "ACCOUNTADMIN", FunctionName("DEMO", "PUBLIC", "NEWNAME"), 1
        )
        assert found.function.signature.name == "newName"
        assert list_usable_functions(connection, "ACCOUNTADMIN", *("DEMO", "PUBLIC", "ECHO")) == []


def test_an_author_needs_create_function_and_the_integration(demo: Any) -> None:
    with pytest.raises(UserError, match="DEMO does not exist"):
        demo(CREATE_ECHO, **AUTHOR)
    demo("GRANT USAGE ON DATABASE demo TO ROLE author")
    demo("GRANT USAGE ON SCHEMA demo.public TO ROLE author")
    with pytest.raises(PrivilegeMissing, match=r"AUTHOR lacks CREATE FUNCTION on schema DEMO\.PUB"):
        demo(CREATE_ECHO, **AUTHOR)
    demo("GRANT CREATE FUNCTION ON SCHEMA demo.public TO ROLE author")
    with pytest.raises(NotFound, match="API integration GATEWAY does not exist"):
        demo(CREATE_ECHO, **AUTHOR)
    demo("GRANT USAGE ON INTEGRATION gateway TO ROLE author")
    demo(CREATE_ECHO, **AUTHOR)
    with pytest.raises(PrivilegeMissing, match="OWNERSHIP on integration GATEWAY"):
        demo("ALTER INTEGRATION gateway SET ENABLED = FALSE", **AUTHOR)
    with pytest.raises(PrivilegeMissing, match="CREATE INTEGRATION on the account"):
        demo(
            "CREATE API INTEGRATION x API_PROVIDER=http API_ALLOWED_PREFIXES=('https://x')",
            **AUTHOR,
        )
    demo("GRANT CREATE INTEGRATION ON ACCOUNT TO ROLE author")
    demo("CREATE API INTEGRATION x API_PROVIDER=http API_ALLOWED_PREFIXES=('https://x')", **AUTHOR)
    assert ("CREATE INTEGRATION", "ACCOUNT", "", "ROLE", "AUTHOR") in demo(
        "SHOW GRANTS TO ROLE author"
    ).rows


def test_a_caller_needs_usage_and_no_integration(shared: Any, database: Database) -> None:
    shared(CREATE_ECHO, **AUTHOR)
    assert shared("SHOW FUNCTIONS", **CALLER).rows == ()
    with pytest.raises(NotFound):
        shared("DESCRIBE FUNCTION demo.public.echo(INT)", **CALLER)
    with database.reading() as connection, pytest.raises(NotFound, match="this role may not"):
        find_callable_function(connection, "CALLER", ECHO, 1)
    shared("GRANT USAGE ON FUNCTION demo.public.echo(INT) TO ROLE caller", **AUTHOR)
    assert names(shared("SHOW EXTERNAL FUNCTIONS", **CALLER)) == ["ECHO"]
    assert shared("SHOW INTEGRATIONS", **CALLER).rows == ()
    with database.reading() as connection:
        found = find_callable_function(connection, "CALLER", ECHO, 1)
        assert found.integration.api_key == "env:GATEWAY_KEY"
        assert (found.request_translator, found.name) == (None, ECHO)
    for text in (
        "ALTER FUNCTION demo.public.echo(INT) SET SECURE",
        "ALTER FUNCTION demo.public.echo(INT) RENAME TO x",
        "DROP FUNCTION demo.public.echo(INT)",
        "GRANT USAGE ON FUNCTION demo.public.echo(INT) TO ROLE caller",
    ):
        with pytest.raises(PrivilegeMissing, match="OWNERSHIP on function DEMO"):
            shared(text, **CALLER)
    granted = shared("SHOW GRANTS ON FUNCTION demo.public.echo(INT)").rows
    assert ("USAGE", "FUNCTION", "DEMO.PUBLIC.ECHO(NUMBER)", "ROLE", "CALLER") in granted
    assert ("OWNERSHIP", "FUNCTION", "DEMO.PUBLIC.ECHO(NUMBER)", "ROLE", "AUTHOR") in granted
    shared("REVOKE USAGE ON FUNCTION demo.public.echo(INT) FROM ROLE caller", **AUTHOR)
    assert shared("SHOW FUNCTIONS", **CALLER).rows == ()


def test_without_its_schema_a_function_is_out_of_reach(shared: Any, database: Database) -> None:
    shared(CREATE_ECHO)
    shared("GRANT USAGE ON FUNCTION demo.public.echo(INT) TO ROLE caller")
    shared("REVOKE USAGE ON SCHEMA demo.public FROM ROLE caller")
    assert shared("SHOW FUNCTIONS", **CALLER).rows == ()
    with database.reading() as connection:
        assert list_usable_functions(connection, "CALLER", "DEMO", "PUBLIC", "ECHO") == []


def test_a_secure_function_shows_its_address_to_its_owner_alone(shared: Any) -> None:
    shared(
        CREATE_ECHO.replace("CREATE", "CREATE SECURE").replace(
            " AS ", " HEADERS = ('a' = 'hunter2') CONTEXT_HEADERS = (CURRENT_USER) AS "
        ),
        **AUTHOR,
    )
    shared("GRANT USAGE ON FUNCTION demo.public.echo(INT) TO ROLE caller")
    described = properties(shared("DESCRIBE FUNCTION demo.public.echo(INT)", **CALLER))
    assert [described[key] for key in ("body", "headers", "context_headers")] == [REDACTED] * 3
    shown = shared("SHOW EXTERNAL FUNCTIONS", **CALLER)
    assert "https" not in repr((described, shown))
    owned = properties(shared("DESCRIBE FUNCTION demo.public.echo(INT)", **AUTHOR))
    assert (owned["body"], owned["headers"]) == ("https://h/f/echo", "'a'='hunter2'")


def test_nobody_is_shown_where_a_key_is_kept(demo: Any) -> None:
    demo(
        "ALTER INTEGRATION gateway SET AUTHENTICATION = BASIC USER = 'u' SECRET = 'file:/run/hidden'"
    )
    described = demo("DESCRIBE INTEGRATION gateway")
    assert properties(described)["API_KEY"] == properties(described)["SECRET"] == REDACTED
    assert "GATEWAY_KEY" not in repr(described)
    assert "hidden" not in repr((described, demo("SHOW INTEGRATIONS")))


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ("AUTHENTICATION = BASIC SECRET = 'env:S'", "BASIC requires USER"),
        ("AUTHENTICATION = BEARER", "BEARER requires SECRET"),
        ("AUTHENTICATION = BEARER USER = 'u' SECRET = 'env:S'", "BEARER does not support USER"),
        ("AUTHENTICATION = SIGV4 USER = 'u'", "both USER and SECRET"),
        ("SECRET = 'env:S'", "NONE does not support SECRET"),
    ],
)
def test_an_authentication_has_what_it_needs_and_no_more(
    demo: Any, clauses: str, reason: str
) -> None:
    with pytest.raises(DeclarationInvalid, match=reason):
        demo(f"ALTER INTEGRATION gateway SET {clauses}")
    with pytest.raises(DeclarationInvalid, match=reason):
        demo(
            "CREATE API INTEGRATION x API_PROVIDER = http API_ALLOWED_PREFIXES = ('https://x') "
            + clauses
        )


def test_an_integration_in_use_stays_and_a_disabled_one_lets_no_calls_through(
    demo: Any, database: Database
) -> None:
    demo(CREATE_ECHO)
    with pytest.raises(UserError, match="GATEWAY is used by ECHO"):
        demo("DROP INTEGRATION gateway")
    demo("ALTER INTEGRATION gateway SET ENABLED = FALSE")
    with (
        database.reading() as connection,
        pytest.raises(IntegrationDisabled, match="GATEWAY is disabled"),
    ):
        find_callable_function(connection, "ACCOUNTADMIN", ECHO, 1)
    demo(
        "CREATE OR REPLACE API INTEGRATION gateway API_PROVIDER = http "
        "API_ALLOWED_PREFIXES = ('https://h/g')"
    )
    with database.reading() as connection:
        found = find_callable_function(connection, "ACCOUNTADMIN", ECHO, 1)
    assert found.integration.allowed_prefixes == ("https://h/g",)
    demo("DROP FUNCTION demo.public.echo(INT)")
    demo("DROP INTEGRATION gateway")
    assert "Nothing" in demo("DROP INTEGRATION IF EXISTS gateway").message


TRANSLATOR = "FUNCTION demo.public.t(event OBJECT) RETURNS OBJECT LANGUAGE JAVASCRIPT AS $$ {} $$"


def test_translators_are_there_before_functions_and_as_long(demo: Any, database: Database) -> None:
    with_one = CREATE_ECHO.replace(" AS ", " RESPONSE_TRANSLATOR = t AS ")
    with pytest.raises(NotFound, match=r"Translator DEMO\.PUBLIC\.T does not exist"):
        demo(with_one)
    demo("CREATE " + TRANSLATOR.format("return event;"))
    demo(with_one)
    with pytest.raises(UserError, match=r"T is used by DEMO\.PUBLIC\.ECHO\(NUMBER\)"):
        demo("DROP FUNCTION demo.public.t(OBJECT)")
    with pytest.raises(AlreadyExists):
        demo("CREATE " + TRANSLATOR.format(""))
    demo("CREATE OR REPLACE " + TRANSLATOR.format("return {};"))
    with database.reading() as connection:
        found = find_callable_function(connection, "ACCOUNTADMIN", ECHO, 1).response_translator
    assert found is not None
    assert (found.name, found.body) == ("DEMO.PUBLIC.T", " return {}; ")
    assert found.language is TranslatorLanguage.JAVASCRIPT
    assert names(demo("SHOW FUNCTIONS")) == ["ECHO", "T"]
    assert names(demo("SHOW EXTERNAL FUNCTIONS")) == ["ECHO"]
    assert properties(demo("DESC FUNCTION demo.public.t(OBJECT)"))["language"] == "JAVASCRIPT"
    with pytest.raises(UserError, match=r"Cannot alter translator .*T\(OBJECT\)"):
        demo("ALTER FUNCTION demo.public.t(OBJECT) SET COMMENT = 'x'")
    demo("ALTER FUNCTION demo.public.echo(INT) UNSET RESPONSE_TRANSLATOR")
    with pytest.raises(NotFound):
        demo("DROP EXTERNAL FUNCTION demo.public.t(OBJECT)")
    demo("DROP FUNCTION demo.public.t(OBJECT)")


def test_python_runs_where_calls_are_made_so_the_administrator_alone_may_bring_it(
    shared: Any, database: Database
) -> None:
    python = (
        "CREATE FUNCTION demo.public.p(event OBJECT) RETURNS OBJECT LANGUAGE PYTHON "
        "HANDLER = 'main' AS 'def main(event): return event'"
    )
    with pytest.raises(PrivilegeMissing, match="PYTHON"):
        shared(python, **AUTHOR)
    shared("CREATE " + TRANSLATOR.format("return event"), **AUTHOR)
    shared(python)
    with_python = CREATE_ECHO.replace(" AS ", " REQUEST_TRANSLATOR = p AS ")
    with pytest.raises(NotFound):
        shared(with_python, **AUTHOR)
    shared("GRANT USAGE ON FUNCTION demo.public.p(OBJECT) TO ROLE author")
    shared(with_python, **AUTHOR)
    with database.reading() as connection:
        found = find_callable_function(connection, "AUTHOR", ECHO, 1).request_translator
    assert found is not None
    assert (found.handler, found.language) == ("main", TranslatorLanguage.PYTHON)


def test_functions_go_with_their_schema_and_not_with_a_table(demo: Any) -> None:
    demo("CREATE SCHEMA demo.other")
    demo(CREATE_ECHO)
    demo(CREATE_ECHO.replace("public", "other"))
    demo("CREATE " + TRANSLATOR.format(""))
    demo("CREATE TABLE demo.public.echo (x INT)")
    demo("DROP TABLE demo.public.echo")
    assert len(demo("SHOW FUNCTIONS").rows) == 3
    demo("DROP SCHEMA demo.other")
    assert len(demo("SHOW FUNCTIONS IN DATABASE demo").rows) == 2
    with pytest.raises(SchemaNotFound):
        demo("SHOW FUNCTIONS IN demo.other")
    with pytest.raises(UserError, match="is not empty"):
        demo("DROP SCHEMA demo.public RESTRICT")
    demo("CREATE OR REPLACE SCHEMA demo.public")
    assert demo("SHOW FUNCTIONS").rows == ()
    demo(CREATE_ECHO)
    demo("DROP DATABASE demo")
    demo("DROP INTEGRATION gateway")


def test_what_a_dropped_role_owned_goes_to_the_administrator(shared: Any) -> None:
    shared(CREATE_ECHO, **AUTHOR)
    shared("GRANT OWNERSHIP ON INTEGRATION gateway TO ROLE author")
    shared("DROP ROLE author")
    assert shared("SHOW EXTERNAL FUNCTIONS").rows[0][-1] == "ACCOUNTADMIN"
    assert shared("SHOW INTEGRATIONS").rows[0][-1] == "ACCOUNTADMIN"


def test_two_that_could_be_called_alike_are_never_both_created(
    demo: Any, database: Database
) -> None:
    start, outcomes = threading.Barrier(2), []

    def create(arguments: str) -> None:
        start.wait()
        try:
            demo(CREATE_ECHO.replace("n INTEGER", arguments))
            outcomes.append("created")
        except AlreadyExists:
            outcomes.append("refused")

    texts = ("a INT, b INT DEFAULT 1", "a VARCHAR")
    threads = [threading.Thread(target=create, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", "refused"]
    assert len(demo("SHOW FUNCTIONS").rows) == 1


def test_changes_at_the_same_time_undo_nothing_of_each_other(demo: Any) -> None:
    demo(CREATE_ECHO)
    changes = {
        "MAX_BATCH_ROWS = 7": ("max_batch_rows", 7),
        "MAX_IN_FLIGHT = 3": ("max_in_flight", 3),
        "RATE_LIMIT = 5": ("rate_limit", 5.0),
        "COMMENT = 'x'": ("comment", "x"),
    }
    start = threading.Barrier(len(changes))

    def alter(change: str) -> None:
        start.wait()
        demo(f"ALTER FUNCTION demo.public.echo(INT) SET {change}")

    threads = [threading.Thread(target=alter, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    described = properties(demo("DESCRIBE FUNCTION demo.public.echo(INT)"))
    assert {key: described[key] for key, _ in changes.values()} == dict(changes.values())
