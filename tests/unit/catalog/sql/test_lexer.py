"""Words, and their places."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.lexer import (
    SourcePosition,
    SqlRules,
    TokenKind,
    is_copy_into,
    is_copy_statement,
    is_query,
    split_script,
    tokenize,
)
from snowmelt.errors import StatementError


def test_words_that_belong_together_are_still_single_words() -> None:
    words = [token.text for token in tokenize("cluster  by double\nprecision")]
    assert words == ["CLUSTER", "BY", "DOUBLE", "PRECISION", ""]


def test_every_token_knows_its_line_and_column() -> None:
    places = [token.position for token in tokenize("a -- é\n  'b\nc' d\n")]
    assert places == [
        SourcePosition(1, 1),
        SourcePosition(2, 3),
        SourcePosition(3, 4),
        SourcePosition(3, 5),
    ]


def test_quotes_are_undone() -> None:
    quoted, text, end = tokenize("\"a\"\"b\" 'it''s'")
    assert (quoted.kind, quoted.text) == (TokenKind.QUOTED, 'a"b')
    assert (text.kind, text.text) == (TokenKind.STRING, "it's")
    assert end.kind is TokenKind.END


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"'a\nb\\c\'d'", "a\nb\\c'd"),
        (r"'\101\x41\u0041\0'", "AAA\0"),
        (r"'\777\x4\u41\ud800\q'", "?7x4u41ud800q"),
        (r"'\ud83d\ude00'", "😀"),
        ("''''", "'"),
        ("$$it's \\n$$", "it's \\n"),
    ],
)
def test_strings_are_those_of_snowflake(written: str, text: str) -> None:
    [token, _] = tokenize(written)
    assert (token.kind, token.text) == (TokenKind.STRING, text)


def test_numbers_operators_and_comments_end_where_they_do_for_snowflake() -> None:
    text = "$1.a::b || 1.5e-3-1e-x=>0x1F // c\r--d\n/* e */ `f` n'g' a$b 1_0 {# h #};"
    assert [token.source_text for token in tokenize(text)] == [
        *("$", "1", ".", "a", "::", "b", "||", "1.5e-3", "-", "1e", "-", "x", "=>", "0x1F"),
        *("`f`", "n'g'", "a$b", "1", "_0", ";", ""),
    ]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a /* b", "a $$b", r"a 'b\'", "a x'b"])
def test_what_is_not_closed_is_shown_where_it_begins(text: str) -> None:
    with pytest.raises(StatementError) as caught:
        tokenize(text)
    assert caught.value.fields["column"] == (4 if "x" in text else 3)


@pytest.mark.parametrize("number", ["9" * 5_000, "0" * 5_000 + "1", "1." + "5" * 5_000])
def test_a_number_that_python_cannot_convert_is_an_error_of_the_statement(number: str) -> None:
    with pytest.raises(StatementError, match="at most 1,000 characters") as caught:
        tokenize(f"SHOW TABLES\n LIMIT {number}")
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (2, 8)


@pytest.mark.timeout(60)
def test_many_comments_take_no_exponential_time() -> None:
    comments = "/**/-- x\n" * 5_000
    for text, is_copy in ((f"{comments}x", False), (f"{comments}COPY t FROM 'x'", True)):
        assert is_copy_statement(text) == is_copy
        assert is_copy_into(text) is False
        assert is_query(text) is False
        assert len(split_script(text)) == 1
    assert is_copy_into(f"{comments}COPY{comments}INTO t FROM 'x'")


@pytest.mark.parametrize("text", [r'SELECT "it\"s"', r"SELECT r'\'", "SELECT 1 /* a /* b */ c */"])
def test_a_query_is_known_by_its_first_words(text: str) -> None:
    assert is_query(text)
    assert is_query(text + " /* INFER_SCHEMA */")
    assert not is_query("DROP " + text)


def test_an_identifier_with_a_quote_in_it_stays_one_of_snowflake() -> None:
    assert [token.text for token in tokenize(r'DROP TABLE "it\"')] == ["DROP", "TABLE", "it\\", ""]


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        (r'"it\"s"', TokenKind.STRING, r"it\"s"),
        ("'it''s'", TokenKind.STRING, "it's"),
        (r"r'a\'", TokenKind.STRING, r"r'a\'"),
        ("$a$ ' $$ $a$", TokenKind.STRING, "$a$ ' $$ $a$"),
        ("`a``b.c`", TokenKind.QUOTED, "a`b.c"),
        ("1a", TokenKind.WORD, "1A"),
        ("größe", TokenKind.WORD, "GRÖSSE"),
        ("1.5e-3", TokenKind.NUMBER, "1.5e-3"),
        ("10L", TokenKind.NUMBER, "10L"),
        ("=>", TokenKind.SYMBOL, "=>"),
    ],
)
def test_tokens_of_queries_are_those_of_spark(written: str, kind: TokenKind, text: str) -> None:
    comment = "/* ' /* `x */ \" */ -- '"
    [token, end] = tokenize(f"{comment}\n{written}\n{comment}", SqlRules.SPARK)
    assert (token.kind, token.text, token.source_text) == (kind, text, written)
    assert end.kind is TokenKind.END


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a /* b /* c */", "a $$b", r"a 'b\'"])
def test_what_is_not_closed_in_a_query_is_refused(text: str) -> None:
    if "$" in text:
        assert [token.text for token in tokenize(text, SqlRules.SPARK)] == ["A", "$", "$", "B", ""]
        return
    with pytest.raises(StatementError, match="not closed") as caught:
        tokenize(text, SqlRules.SPARK)
    assert caught.value.fields["column"] == 3


def test_a_name_with_a_dollar_sign_is_refused_in_a_query() -> None:
    with pytest.raises(StatementError, match="Write the name in backticks"):
        tokenize("SELECT * FROM a.b.c$d", SqlRules.SPARK)
    assert tokenize("SELECT ${spark.x}, x.${y}", SqlRules.SPARK)
