"""What a statement means, and what is refused; no database needed."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snowmelt.catalog.sql.cursor import CreateMode, NameLevel, ObjectName
from snowmelt.catalog.sql.lexer import SourcePosition, is_query
from snowmelt.catalog.statements.buckets import AlterBucket, CreateBucket, DropBucket
from snowmelt.catalog.statements.executor import LISTINGS, parse_statement
from snowmelt.catalog.statements.grants import (
    GrantOnAccount,
    GrantOnBucket,
    GrantPrivileges,
    GrantRole,
    PrivilegeGrant,
    ShowGrants,
)
from snowmelt.catalog.statements.namespaces import (
    CreateDatabase,
    CreateSchema,
    DescribeObject,
    DropObject,
)
from snowmelt.catalog.statements.statement_context import ShowObjects, Statement
from snowmelt.catalog.statements.tables import CreateTable
from snowmelt.catalog.statements.users_and_roles import (
    AddAccessKey,
    AlterUser,
    CreateRole,
    CreateUser,
    DescribeUser,
    DropAccessKey,
    DropPrincipal,
)
from snowmelt.errors import StatementError
from snowmelt.schema.types import to_display_name

TYPES = {
    "NUMBER": "NUMBER(38,0)",
    "NUMBER(10)": "NUMBER(10,0)",
    "NUMBER(10, 2)": "NUMBER(10,2)",
    "DECIMAL(38,37)": "NUMBER(38,37)",
    "DEC(5)": "NUMBER(5,0)",
    "NUMERIC": "NUMBER(38,0)",
    "INT": "NUMBER(38,0)",
    "INTEGER": "NUMBER(38,0)",
    "BIGINT": "NUMBER(38,0)",
    "SMALLINT": "NUMBER(38,0)",
    "TINYINT": "NUMBER(38,0)",
    "BYTEINT": "NUMBER(38,0)",
    "FLOAT": "FLOAT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "FLOAT",
    "DOUBLE": "FLOAT",
    "DOUBLE PRECISION": "FLOAT",
    "double\n  precision": "FLOAT",
    "REAL": "FLOAT",
    "BOOLEAN": "BOOLEAN",
    "VARCHAR": "VARCHAR(16777216)",
    "VARCHAR(10)": "VARCHAR(10)",
    "STRING": "VARCHAR(16777216)",
    "TEXT(3)": "VARCHAR(3)",
    "NVARCHAR": "VARCHAR(16777216)",
    "CHAR": "VARCHAR(1)",
    "CHARACTER(7)": "VARCHAR(7)",
    "NCHAR": "VARCHAR(1)",
    "CHARACTER VARYING(9)": "VARCHAR(9)",
    "CHAR VARYING": "VARCHAR(16777216)",
    "NCHAR VARYING(2)": "VARCHAR(2)",
    "BINARY": "BINARY(8388608)",
    "VARBINARY(5)": "BINARY(5)",
    "DATE": "DATE",
    "TIME": "TIME(9)",
    "TIME(0)": "TIME(0)",
    "TIMESTAMP": "TIMESTAMP_NTZ(9)",
    "TIMESTAMP(3)": "TIMESTAMP_NTZ(3)",
    "DATETIME(6)": "TIMESTAMP_NTZ(6)",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ(9)",
    "TIMESTAMPNTZ(1)": "TIMESTAMP_NTZ(1)",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP_NTZ(9)",
    "TIMESTAMP_LTZ(2)": "TIMESTAMP_LTZ(2)",
    "TIMESTAMP WITH LOCAL TIME ZONE": "TIMESTAMP_LTZ(9)",
    "TIMESTAMP_TZ": "TIMESTAMP_TZ(9)",
    "TIMESTAMPTZ(4)": "TIMESTAMP_TZ(4)",
    "TIMESTAMP(3) WITH TIME ZONE": "TIMESTAMP_TZ(3)",
    "VARIANT": "VARIANT",
    "ARRAY": "ARRAY",
    "OBJECT": "OBJECT",
}


def table(columns: str, rest: str = "") -> CreateTable:
    statement = parse_statement(f"CREATE TABLE d.s.t ({columns}) {rest}")
    assert isinstance(statement, CreateTable)
    return statement


def refusal(text: str) -> tuple[str, object, object]:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    fields = caught.value.fields
    assert str(caught.value).endswith(f"(line {fields['line']}, column {fields['column']}).")
    return str(fields["reason"]), fields["line"], fields["column"]


@pytest.mark.parametrize(("written", "meant"), TYPES.items(), ids=list(TYPES))
def test_types_have_snowflakes_synonyms_and_defaults(written: str, meant: str) -> None:
    assert table(f"c {written}").columns[0].sql_type == meant


def test_text_is_counted_in_characters_and_bytes() -> None:
    short, long = table("a VARCHAR(10), b VARCHAR(5000000)").columns
    assert (short.length, short.byte_length) == (10, 40)
    assert (long.length, long.byte_length) == (5_000_000, 16 * 1024 * 1024)


def test_create_table_keeps_order_nullability_and_clustering() -> None:
    statement = parse_statement(
        'create or replace table Demo."pu ""b".Flights (\n'
        "  origin VARCHAR NOT NULL, -- the airport; really\n"
        '  "Tail Num" VARCHAR DEFAULT NULL, delay NUMBER(4) NULL DEFAULT NULL\n'
        ') CLUSTER BY (ORIGIN, "Tail Num");'
    )
    assert isinstance(statement, CreateTable)
    assert statement.name.parts == ("DEMO", 'pu "b', "FLIGHTS")
    assert statement.create_mode is CreateMode.OR_REPLACE
    assert [(c.name, c.ordinal, c.nullable) for c in statement.columns] == [
        ("ORIGIN", 1, False),
        ("Tail Num", 2, True),
        ("DELAY", 3, True),
    ]
    assert statement.cluster_by == ("ORIGIN", "Tail Num")


def test_words_that_are_only_types_elsewhere_may_name_columns() -> None:
    names = [column.name for column in table("date DATE, time TIME, number INT, year INT").columns]
    assert names == ["DATE", "TIME", "NUMBER", "YEAR"]


MEANINGS = {
    "CREATE DATABASE demo": CreateDatabase("DEMO", CreateMode.FAIL_IF_EXISTS),
    "CREATE DATABASE IF NOT EXISTS demo": CreateDatabase("DEMO", CreateMode.IF_NOT_EXISTS),
    "CREATE SCHEMA d.s": CreateSchema(
        ObjectName(("D", "S"), SourcePosition(1, 15)), CreateMode.FAIL_IF_EXISTS
    ),
    "CREATE ROLE loader": CreateRole("LOADER", CreateMode.FAIL_IF_EXISTS),
    "CREATE USER u RSA_PUBLIC_KEY='AB' DEFAULT_ROLE=r": CreateUser(
        "U", CreateMode.FAIL_IF_EXISTS, "AB", None, "R"
    ),
    "ALTER USER u SET RSA_PUBLIC_KEY_2 = 'x'": AlterUser("U", (("RSA_PUBLIC_KEY_2", "x"),), False),
    "ALTER USER IF EXISTS u UNSET RSA_PUBLIC_KEY, RSA_PUBLIC_KEY_2": AlterUser(
        "U", (("RSA_PUBLIC_KEY", None), ("RSA_PUBLIC_KEY_2", None)), True
    ),
    "DROP TABLE IF EXISTS t": DropObject(
        NameLevel.TABLE, ObjectName(("T",), SourcePosition(1, 22)), True, False
    ),
    "DROP SCHEMA d.s RESTRICT": DropObject(
        NameLevel.SCHEMA, ObjectName(("D", "S"), SourcePosition(1, 13)), False, True
    ),
    "DROP DATABASE d CASCADE": DropObject(
        NameLevel.DATABASE, ObjectName(("D",), SourcePosition(1, 15)), False, False
    ),
    "DROP USER u": DropPrincipal("USER", "U", False),
    "DESC TABLE t": DescribeObject(NameLevel.TABLE, ObjectName(("T",), SourcePosition(1, 12))),
    "DESCRIBE d.s.t": DescribeObject(
        NameLevel.TABLE, ObjectName(("D", "S", "T"), SourcePosition(1, 10))
    ),
    "DESCRIBE SCHEMA s": DescribeObject(
        NameLevel.SCHEMA, ObjectName(("S",), SourcePosition(1, 17))
    ),
    "SHOW TABLES": ShowObjects(LISTINGS["TABLES"]),
    "SHOW TERSE TABLES LIKE 'a%' IN SCHEMA d.s STARTS WITH 'A' LIMIT 5": ShowObjects(
        LISTINGS["TABLES"],
        "a%",
        NameLevel.SCHEMA,
        ObjectName(("D", "S"), SourcePosition(1, 39)),
        "A",
        5,
        terse=True,
    ),
    "SHOW SCHEMAS IN d": ShowObjects(
        LISTINGS["SCHEMAS"], None, None, ObjectName(("D",), SourcePosition(1, 17))
    ),
    "SHOW CHANNELS IN TABLE t": ShowObjects(
        LISTINGS["CHANNELS"], None, NameLevel.TABLE, ObjectName(("T",), SourcePosition(1, 24))
    ),
    "SHOW USERS": ShowObjects(LISTINGS["USERS"]),
    "SHOW GRANTS": ShowGrants(),
    "SHOW GRANTS TO ROLE r": ShowGrants("TO", "ROLE", ObjectName(("R",), SourcePosition(1, 21))),
    "SHOW GRANTS OF ROLE r": ShowGrants("OF", "ROLE", ObjectName(("R",), SourcePosition(1, 21))),
    "SHOW GRANTS ON SCHEMA s": ShowGrants(
        "ON", "SCHEMA", ObjectName(("S",), SourcePosition(1, 23))
    ),
    "GRANT ROLE r TO USER u": GrantRole("R", "U", False),
    "CREATE BUCKET Raw": CreateBucket("raw", CreateMode.FAIL_IF_EXISTS),
    "CREATE BUCKET IF NOT EXISTS 'my-data'": CreateBucket("my-data", CreateMode.IF_NOT_EXISTS),
    'DROP BUCKET IF EXISTS "my-data"': DropBucket("my-data", True),
    "ALTER BUCKET raw SET SELECT_DIALECT = 'ceph'": AlterBucket("raw", "ceph", False),
    "ALTER BUCKET IF EXISTS raw UNSET SELECT_DIALECT": AlterBucket("raw", None, True),
    "DESCRIBE USER u": DescribeUser("U"),
    "ALTER USER u ADD ACCESS KEY": AddAccessKey("U"),
    "ALTER USER u DROP ACCESS KEY 'SMAK1'": DropAccessKey("U", "SMAK1"),
    # As SHOW ACCESS KEYS prints it.
    "ALTER USER u DROP ACCESS KEY SMAK2": DropAccessKey("U", "SMAK2"),
    "GRANT READ, WRITE ON BUCKET raw TO ROLE r": GrantOnBucket(
        PrivilegeGrant(("READ", "WRITE"), "R", False), "raw", None
    ),
    "REVOKE READ ON BUCKET 'my-data' PREFIX 'in/Ä/' FROM ROLE r": GrantOnBucket(
        PrivilegeGrant(("READ",), "R", True), "my-data", "in/Ä/"
    ),
    "GRANT ALL ON BUCKET raw TO r": GrantOnBucket(
        PrivilegeGrant(("READ", "WRITE"), "R", False), "raw", None
    ),
    "GRANT CREATE BUCKET ON ACCOUNT TO ROLE r": GrantOnAccount(
        PrivilegeGrant(("CREATE BUCKET",), "R", False)
    ),
    "SHOW BUCKETS LIKE 'm%'": ShowObjects(LISTINGS["BUCKETS"], "m%", NameLevel.ACCOUNT),
    "SHOW ACCESS KEYS": ShowObjects(LISTINGS["ACCESS KEYS"], None, NameLevel.ACCOUNT),
    "REVOKE ROLE r FROM USER u": GrantRole("R", "U", True),
    "GRANT INSERT, EVOLVE SCHEMA ON TABLE t TO ROLE r": GrantPrivileges(
        PrivilegeGrant(("INSERT", "EVOLVE SCHEMA"), "R", False),
        NameLevel.TABLE,
        ObjectName(("T",), SourcePosition(1, 38)),
    ),
    "GRANT ALL PRIVILEGES ON DATABASE d TO r": GrantPrivileges(
        PrivilegeGrant(("USAGE", "CREATE SCHEMA", "MONITOR"), "R", False),
        NameLevel.DATABASE,
        ObjectName(("D",), SourcePosition(1, 34)),
    ),
    "REVOKE USAGE ON SCHEMA d.s FROM ROLE r": GrantPrivileges(
        PrivilegeGrant(("USAGE",), "R", True),
        NameLevel.SCHEMA,
        ObjectName(("D", "S"), SourcePosition(1, 24)),
    ),
}


@pytest.mark.parametrize("text", MEANINGS, ids=list(MEANINGS))
def test_statements_mean_what_snowflake_means(text: str) -> None:
    expected = MEANINGS[text]
    statement = parse_statement(text + " ;")
    if isinstance(statement, ShowObjects) and statement.level is NameLevel.ACCOUNT:
        assert statement.scope is None
        assert isinstance(expected, ShowObjects)
        assert (statement.listing, statement.like_pattern) == (
            expected.listing,
            expected.like_pattern,
        )
    else:
        assert statement == expected


REFUSED_COLUMNS = {
    "a GEOGRAPHY": ("GEOGRAPHY is not supported", 23),
    "a GEOMETRY": ("GEOMETRY is not supported", 23),
    "a VECTOR(FLOAT, 3)": ("VECTOR is not supported", 23),
    "a MAP(VARCHAR, INT)": ("MAP is not supported", 23),
    "a ARRAY(INT)": ("Typed ARRAY is not supported", 28),
    "a OBJECT(b INT)": ("Typed OBJECT is not supported", 29),
    "a VARCHAR COLLATE 'en-ci'": ("COLLATE is not supported", 31),
    "a INT AUTOINCREMENT": ("AUTOINCREMENT is not supported", 27),
    "a INT IDENTITY(1,1)": ("IDENTITY is not supported", 27),
    "a INT DEFAULT 'x'": ("Invalid default for A: ", 35),
    "a NUMBER(2) DEFAULT 100": ("Invalid default for A: ", 41),
    "a VARCHAR(1) DEFAULT 'xy'": ("Invalid default for A: ", 42),
    "a INT DEFAULT -'x'": ("Expected a constant, CURRENT_TIMESTAMP or NULL", 36),
    "a INT DEFAULT s.nextval": ("Expected a constant, CURRENT_TIMESTAMP or NULL", 35),
    "a DATE DEFAULT CURRENT_TIMESTAMP": (
        "The default CURRENT_TIMESTAMP needs a column of a timestamp type, not DATE",
        36,
    ),
    "a VARIANT DEFAULT 'x'": (
        "Invalid default for A: a column of type VARIANT has no default but NULL",
        39,
    ),
    "a TIMESTAMP_LTZ DEFAULT '2026-01-01 00:00:00'": (
        "Invalid default for A: '2026-01-01 00:00:00' has no offset",
        45,
    ),
    "a INT AS (b + 1)": ("A computed column is not supported", 27),
    "a INT PRIMARY KEY": ("PRIMARY KEY is not supported", 27),
    "a INT UNIQUE": ("UNIQUE is not supported", 27),
    "a INT REFERENCES b(c)": ("REFERENCES is not supported", 27),
    "a INT, PRIMARY KEY (a)": ("PRIMARY KEY is not supported", 28),
    "a INT, CONSTRAINT x UNIQUE (a)": ("CONSTRAINT is not supported", 28),
    "a INT, FOREIGN KEY (a) REFERENCES b (c)": ("FOREIGN KEY is not supported", 28),
    "a INT COMMENT 'x'": ("COMMENT is not supported", 27),
    "a FOO": ("FOO is not a type. Supported types: NUMBER,", 23),
    "a NUMBER(39)": ("The precision must be between 1 and 38", 30),
    "a NUMBER(5,6)": ("The scale must be between 0 and 5", 32),
    "a TIME(10)": ("The scale must be between 0 and 9", 28),
    "a VARCHAR(16777217)": ("The length must be between 1 and 16777216", 31),
    "a VARCHAR(x)": ("Expected the length (1 to 16777216) here, not x", 31),
    "a INT(3)": ("INT takes no further parameters", 26),
    "a INT, A INT": ("Column A is specified twice", 28),
    "select INT": ('select is a reserved word. Quote it to use it as a name: "select"', 21),
    "é INT": ("é has characters that an unquoted name cannot have", 21),
    "`a` INT": ("Use double quotes for names", 21),
    '"" INT': ("The name of a column must have 1 to 255 characters", 21),
    "a": ("Expected a type here", 22),
    "a INT,": ("Expected another column after the comma", 27),
    "a INT NULL NOT NULL": ("This column is both NULL and NOT NULL", 32),
    "a INT NOT": ("Expected NOT NULL, a comma or ) here, not )", 30),
}


@pytest.mark.parametrize("columns", REFUSED_COLUMNS, ids=list(REFUSED_COLUMNS))
def test_what_a_streamed_column_cannot_have_is_refused_at_its_place(columns: str) -> None:
    expected, column = REFUSED_COLUMNS[columns]
    reason, line, at = refusal(f"CREATE TABLE d.s.t (\n{' ' * 20}{columns})")
    assert reason.startswith(expected)
    assert (line, at) == (2, column)


REFUSED = {
    "CREATE TRANSIENT TABLE t (a INT)": ("TRANSIENT is not supported", 8),
    "CREATE TEMPORARY TABLE t (a INT)": ("TEMPORARY is not supported", 8),
    "CREATE OR REPLACE TEMP TABLE t (a INT)": ("TEMP is not supported", 19),
    "CREATE TABLE t AS SELECT 1": ("CREATE TABLE … AS SELECT is not supported", 16),
    "CREATE TABLE t (a INT) AS SELECT 1": ("CREATE TABLE … AS SELECT is not supported", 24),
    "CREATE TABLE t LIKE u (a INT)": (
        "Expected the end of the statement after CREATE TABLE … LIKE",
        23,
    ),
    "CREATE TABLE t CLONE u": ("CREATE TABLE … CLONE is not supported", 16),
    "CREATE TABLE t (a INT) COMMENT = x": ("Expected a comment in single quotes", 34),
    "CREATE TABLE t (a INT) CLUSTER BY (upper(a))": ("CLUSTER BY takes columns, not", 36),
    "CREATE TABLE t (a INT) CLUSTER BY (b)": ("CLUSTER BY contains b, which is not a column", 36),
    "CREATE TABLE t (a INT) CLUSTER BY (a, A)": ("CLUSTER BY contains A twice", 39),
    "CREATE TABLE t (a INT) CHANGE_TRACKING = TRUE": (
        "Expected the end of the statement after",
        24,
    ),
    "CREATE TABLE t (a INT": ("Expected , or ) here, not end of the statement", 22),
    "CREATE TABLE t": ("Expected ( here, not end of the statement", 15),
    "CREATE TABLE a.b.c.d (a INT)": ("The name of a table has at most 3 parts", 19),
    "CREATE TABLE (a INT)": ("Expected the name of a table here, not (", 14),
    "CREATE OR REPLACE TABLE IF NOT EXISTS t (a INT)": ("OR REPLACE and IF NOT EXISTS", 25),
    "CREATE VIEW v AS SELECT 1": (
        "Expected DATABASE, SCHEMA, TABLE, USER, ROLE, BUCKET, PIPE, LIBRARY, FILTER, PARSER, SOURCE, EXTERNAL FUNCTION, FUNCTION, API INTEGRATION, FAILOVER GROUP or REPLICATION GROUP",
        8,
    ),
    "CREATE OR REPLACE USER u": ("OR REPLACE is not supported for a user", 19),
    "CREATE USER u PASSWORD = 'x'": ("Passwords are not supported", 15),
    "CREATE USER u RSA_PUBLIC_KEY = x": ("Expected a public key in single quotes", 32),
    "ALTER VIEW v RENAME TO w": (
        "ALTER VIEW is not supported. Expected ALTER DATABASE, SCHEMA",
        7,
    ),
    "ALTER USER u SET": ("Expected RSA_PUBLIC_KEY, RSA_PUBLIC_KEY_2 or", 17),
    "DROP CHANNEL c": (
        "Expected DATABASE, SCHEMA, TABLE, USER, ROLE, BUCKET, PIPE, LIBRARY, FILTER, PARSER, SOURCE, EXTERNAL FUNCTION, FUNCTION, INTEGRATION, FAILOVER GROUP or REPLICATION GROUP",
        6,
    ),
    "USE ROLE r": ("USE is not supported", 1),
    "INSERT INTO t VALUES (1)": ("INSERT is not supported: insert rows", 1),
    "UNDROP VIEW v": ("Expected DATABASE, SCHEMA or TABLE here", 8),
    "COMMENT ON COLUMN t.a IS 'x'": ("Comments on columns are not supported", 12),
    "ALTER SCHEMA s SWAP WITH t": ("SWAP WITH is not supported", 16),
    "SHOW CHANNELS HISTORY": ("Expected the end of the statement after SHOW CHANNELS", 15),
    "SHOW TERSE GRANTS": ("Expected DATABASES", 12),
    "CREAT TABLE t": (
        "CREAT does not start a statement. Did you mean CREATE? Statements start with",
        1,
    ),
    "": ("Expected a statement here", 1),
    "-- nothing": ("Expected a statement here", 11),
    "SHOW CHANELS": ("Expected DATABASES, SCHEMAS, TABLES, CHANNELS,", 6),
    "SHOW TABLES IN TABLE x": ("TABLE is a reserved word", 16),
    "SHOW TABLES LIKE x": ("Expected a pattern in single quotes here, not x", 18),
    "SHOW TABLES LIMIT 0": ("The limit must be between 1 and 10000", 19),
    "SHOW ROLES IN d": ("Expected ACCOUNT here, not d", 15),
    "GRANT SELEC ON TABLE t TO ROLE r": ("SELEC is not a privilege. Valid privileges:", 7),
    "GRANT INSERT ON DATABASE d TO ROLE r": ("INSERT cannot be granted on a database", 7),
    "GRANT INSERT ON TABLE t TO USER u": ("Privileges can only be granted to roles", 28),
    "GRANT INSERT ON ALL SCHEMAS IN SCHEMA s TO ROLE r": ("Expected DATABASE here", 32),
    "GRANT OWNERSHIP ON FUTURE TABLES IN SCHEMA s TO ROLE r": (
        "OWNERSHIP can only be granted on a single",
        46,
    ),
    "GRANT INSERT ON t TO r WITH GRANT OPTION": ("GRANT OPTION is not supported", 24),
    "GRANT USAGE ON ACCOUNT TO ROLE r": ("The privileges on the account are", 16),
    "GRANT READ ON BUCKET my-data TO ROLE r": ("Quote a bucket name that begins with a digit", 24),
    "GRANT READ ON TABLE t TO ROLE r": ("READ cannot be granted on a table", 7),
    "GRANT INSERT ON BUCKET b TO ROLE r": ("INSERT cannot be granted on a bucket", 7),
    "GRANT OWNERSHIP ON BUCKET b PREFIX 'p' TO ROLE r": ("OWNERSHIP applies to a whole bucket", 40),
    "ALTER USER u ADD ACCESS KEY 'k'": (
        "Expected the end of the statement after ADD ACCESS KEY, not 'k'",
        29,
    ),
    "DESCRIBE USER": ("Expected the name of a user here", 14),
    "ALTER BUCKET b SET SELECT_DIALECT = 'oracle'": ("Valid dialects", 37),
    "DROP BUCKET b CASCADE": ("CASCADE is not supported", 15),
    "GRANT ROLE a TO ROLE b": ("Roles within roles are not supported", 17),
    "DROP DATABASE d; DROP DATABASE e": (
        "Expected the end of the statement after DROP, not DROP",
        18,
    ),
    "CREATE DATABASE 'd": ("This string is not closed. End it with '", 17),
    'CREATE DATABASE "d': ('This quoted name is not closed. End it with "', 17),
    "SELECT 1 /* x": ("This comment is not closed. End it with */", 10),
}


@pytest.mark.parametrize("text", REFUSED, ids=list(REFUSED))
def test_what_cannot_be_done_is_refused_with_a_sentence_at_its_place(text: str) -> None:
    expected, column = REFUSED[text]
    reason, line, at = refusal(text)
    assert reason.startswith(expected)
    assert (line, at) == (1, column)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", " -- c\n with a as (select 1) select 2", "(SELECT 1)", "VALUES (1)",
     "EXPLAIN SELECT 1", "FROM t SELECT a", "select `a;b` from t"],
)  # fmt: skip
def test_queries_are_told_by_their_first_word(text: str) -> None:
    assert is_query(text)


@pytest.mark.parametrize("text", ["SHOW TABLES", '"SELECT"', "'SELECT'", "", "DESC t"])
def test_everything_else_is_no_query(text: str) -> None:
    assert not is_query(text)


@given(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40
    )
)
@example("IF")
def test_any_name_survives_quoting(name: str) -> None:
    statement = parse_statement(f"CREATE DATABASE {to_display_name(name)}")
    assert statement == CreateDatabase(name, CreateMode.FAIL_IF_EXISTS)


@pytest.mark.parametrize("word", ["IF", "PRIMARY", "FOREIGN", "KEY", "COMMENT", "TEMPORARY"])
@pytest.mark.parametrize(
    "text",
    [
        "CREATE DATABASE {}",
        "CREATE OR REPLACE DATABASE {}",
        "CREATE SCHEMA IF NOT EXISTS {}",
        "CREATE TABLE {} (A INT)",
        "CREATE TABLE T (A INT, {} TEXT)",
        "CREATE ROLE {}",
        "CREATE USER {}",
        "DROP TABLE {}",
        "DROP TABLE IF EXISTS {}",
        "DROP USER {}",
        "ALTER TABLE T DROP COLUMN {}",
        "DESCRIBE TABLE {}",
        "GRANT SELECT ON TABLE {} TO ROLE R",
    ],
)
def test_a_word_that_is_not_reserved_is_a_name_without_quotes(text: str, word: str) -> None:
    plain, quoted = (parse_statement(text.format(name)) for name in (word, f'"{word}"'))
    assert without_positions(plain) == without_positions(quoted)


def without_positions(statement: Statement) -> str:
    return re.sub(r"SourcePosition\(line=\d+, column=\d+\)", "", repr(statement))


@given(st.text(alphabet="abAB01 .,;()'\"`$/*-\n=é", max_size=30))
def test_any_text_is_a_statement_or_one_error(rest: str) -> None:
    for start in ("", "CREATE TABLE ", "SHOW TABLES ", "GRANT "):
        with contextlib.suppress(StatementError):
            assert parse_statement(start + rest) is not None
