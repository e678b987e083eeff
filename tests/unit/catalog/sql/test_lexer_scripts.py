"""Scripts cut into statements."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.lexer import ScriptStatement, SourcePosition, split_script
from snowmelt.errors import StatementError


def test_a_script_is_cut_at_semicolons_outside_quotes_and_comments() -> None:
    script = (
        "SHOW TABLES; -- a; b\n;;\n  SELECT ';', \"x;y\", `p;q`, $$;$$ /* ; */ ;\nDROP ROLE r\n"
    )
    assert split_script(script) == (
        ScriptStatement("SHOW TABLES", SourcePosition(1, 1)),
        ScriptStatement("SELECT ';', \"x;y\", `p;q`, $$;$$ /* ; */", SourcePosition(3, 3)),
        ScriptStatement("DROP ROLE r", SourcePosition(4, 1)),
    )


@pytest.mark.parametrize("text", ["", " \n", "-- only a comment", ";;"])
def test_a_script_without_words_is_empty(text: str) -> None:
    assert split_script(text) == ()


def test_an_unclosed_string_is_shown_where_it_begins() -> None:
    with pytest.raises(StatementError) as caught:
        split_script("SHOW TABLES;\nCREATE DATABASE 'a;\nDROP x")
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (2, 17)


def test_copy_has_strings_of_its_own() -> None:
    script = (
        "SHOW TABLES;\n"
        "-- the next one\n"
        "copy t FROM 'a;b' ESCAPE AS '\\' NULL E'\\';'; SELECT 'it\\'s; copy';\n"
        "SELECT ';copy x';COPY u FROM 'x'"
    )
    assert [piece.text for piece in split_script(script)] == [
        "SHOW TABLES",
        "copy t FROM 'a;b' ESCAPE AS '\\' NULL E'\\';'",
        "SELECT 'it\\'s; copy'",
        "SELECT ';copy x'",
        "COPY u FROM 'x'",
    ]
    assert [piece.position for piece in split_script(script)][1:] == [
        SourcePosition(3, 1),
        SourcePosition(3, 46),
        SourcePosition(4, 1),
        SourcePosition(4, 18),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        r"""SELECT "it\"; s", 'a\'; b', r'\', R"\"""",
        "SELECT /* a /* ; */ ; */ 1 -- ; \\\n ;\n, `;`, 'a'';', \"b\"\";\"",
        r"WITH c AS (SELECT ';') SELECT * FROM c",
        r"""INSERT INTO t VALUES ("\";")""",
        r"""MERGE INTO t USING u ON t.a = "\";" WHEN MATCHED THEN DELETE""",
        "SELECT $$;$$, $a$;$$;$a$",
    ],
)
def test_queries_and_row_changes_have_the_strings_and_comments_of_spark(statement: str) -> None:
    script = split_script(f"SHOW TABLES; {statement}; SHOW USERS")
    assert [piece.text for piece in script] == ["SHOW TABLES", statement, "SHOW USERS"]


@pytest.mark.parametrize(
    "statement",
    [
        r"""CREATE TABLE "a\" (n NUMBER)""",
        r"SELECT SYSTEM$PIPE_STATUS('a\\;')",
        "SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => 'a')) // ;\n",
        "COMMENT ON TABLE t IS $$/* ; $$",
    ],
)
def test_catalog_statements_have_the_strings_and_comments_of_snowflake(statement: str) -> None:
    assert [piece.text for piece in split_script(f"{statement}; SHOW USERS")] == [
        statement.rstrip(),
        "SHOW USERS",
    ]
