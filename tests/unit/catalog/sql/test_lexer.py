"""Words, and their places."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind, tokenize
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
