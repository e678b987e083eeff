"""Translators keep their source as it was written."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.cursor import CreateMode
from snowmelt.catalog.sql.lexer import split_script
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.catalog.statements.external_functions import CreateTranslator
from snowmelt.errors import StatementError
from snowmelt.functions.definition import TranslatorLanguage

HEAD = "CREATE FUNCTION t(event OBJECT) RETURNS OBJECT "
SOURCE = " return {body: event.body, a: \"\\n\", b: 'x''y', c: /\\d;+/}; // it's\n"


def translator(text: str) -> CreateTranslator:
    statement = parse_statement(text)
    assert isinstance(statement, CreateTranslator)
    return statement


def test_between_dollars_everything_stays_as_it_is() -> None:
    made = translator(f"{HEAD}LANGUAGE JAVASCRIPT AS $${SOURCE}$$;").translator
    assert made.body == SOURCE
    assert (made.language, made.argument, made.handler) == (
        TranslatorLanguage.JAVASCRIPT,
        "event",
        None,
    )


def test_between_quotes_escapes_are_undone() -> None:
    made = translator(HEAD + "LANGUAGE JAVASCRIPT AS 'return ''a\\\\n\\';'").translator
    assert made.body == "return 'a\\n';"


def test_a_script_is_not_cut_inside_a_source() -> None:
    statement = f"{HEAD}LANGUAGE JAVASCRIPT AS $${SOURCE}; COPY x; $$"
    pieces = split_script(f"SHOW ROLES;\n{statement};\nSHOW USERS")
    assert [piece.text for piece in pieces] == ["SHOW ROLES", statement, "SHOW USERS"]


def test_python_names_the_function_of_its_source() -> None:
    made = translator(
        'CREATE OR REPLACE FUNCTION a.b.t("Event" OBJECT) RETURNS OBJECT NOT NULL VOLATILE '
        "LANGUAGE PYTHON RUNTIME_VERSION = '3.11' COMMENT = 'c' HANDLER = 'main' "
        "AS 'def main(event): return event'"
    )
    assert made.create_mode is CreateMode.OR_REPLACE
    assert (made.name.parts, made.comment) == (("A", "B", "T"), "c")
    assert (made.translator.handler, made.translator.argument) == ("main", "Event")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE FUNCTION f() RETURNS OBJECT LANGUAGE JAVASCRIPT AS ''", "CREATE FUNCTION makes"),
        ("CREATE FUNCTION f(a INT) RETURNS OBJECT AS ''", "CREATE FUNCTION makes translators"),
        ("CREATE FUNCTION f(a OBJECT, b OBJECT) RETURNS OBJECT AS ''", "CREATE FUNCTION makes"),
        ("CREATE FUNCTION f(a OBJECT) RETURNS VARCHAR AS ''", "CREATE FUNCTION makes"),
        ("CREATE FUNCTION f(a OBJECT) RETURNS TABLE (x INT) AS ''", "CREATE FUNCTION makes"),
        (HEAD + "AS ''", "LANGUAGE is missing"),
        (HEAD + "LANGUAGE SQL AS ''", "LANGUAGE must be JAVASCRIPT or PYTHON, not SQL"),
        (HEAD + "LANGUAGE PYTHON AS ''", "LANGUAGE PYTHON needs HANDLER"),
        (HEAD + "LANGUAGE JAVASCRIPT HANDLER = 'x' AS ''", "HANDLER requires LANGUAGE PYTHON"),
        (HEAD + "LANGUAGE PYTHON HANDLER = 'a.b' AS ''", "Invalid HANDLER 'a.b'"),
        (
            HEAD + "LANGUAGE PYTHON PACKAGES = ('x') AS ''",
            "PACKAGES is not a clause of CREATE FUNC",
        ),
        (HEAD + "LANGUAGE JAVASCRIPT", "Expected a clause of CREATE FUNCTION"),
        (HEAD + "LANGUAGE JAVASCRIPT AS x", "Expected the source in single quotes"),
    ],
)
def test_other_functions_there_are_none(text: str, reason: str) -> None:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    assert str(caught.value.fields["reason"]).startswith(reason)
