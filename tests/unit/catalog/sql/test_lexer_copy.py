"""Words of COPY."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.lexer import (
    SqlRules,
    TokenKind,
    is_copy_statement,
    split_script,
    tokenize,
)
from snowmelt.errors import StatementError


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"'\'", "\\"),
        (r"'\t'", "\\t"),
        ("'it''s'", "it's"),
        ("''", ""),
        (r"E'\t'", "\t"),
        (r"e'\001\x41\u00fc\U0001F600'", "\x01Aü😀"),
        (r"E'\\\'\q'", "\\'q"),
        (r"E'a''b'", "a'b"),
        (r"E'\ud800'", "ud800"),
        ("'a\nb'", "a\nb"),
    ],
)
def test_strings_are_those_of_vertica(written: str, text: str) -> None:
    token, end = tokenize(written, SqlRules.COPY)
    assert (token.kind, token.text, token.source_text) == (TokenKind.STRING, text, written)
    assert end.kind is TokenKind.END


def test_comments_and_blanks_are_left_out() -> None:
    tokens = tokenize('COPY -- a\n "a""b" /* c */ 1.5e3;', SqlRules.COPY)
    assert [token.text for token in tokens] == ["COPY", 'a"b', "1.5e3", ";", ""]
    assert (tokens[1].position.line, tokens[1].position.column) == (2, 2)


@pytest.mark.parametrize("text", ["COPY 'a", 'COPY "a', "COPY /* a", r"COPY E'\'"])
def test_what_is_not_closed_is_shown_where_it_begins(text: str) -> None:
    with pytest.raises(StatementError) as refused:
        tokenize(text, SqlRules.COPY)
    assert refused.value.fields["line"] == 1


def test_a_copy_is_known_by_its_first_word() -> None:
    assert is_copy_statement("/* x */ -- y\n copy t FROM 'x")
    assert not is_copy_statement("copying")
    assert not is_copy_statement('"COPY" t')
    assert not is_copy_statement("")


def test_a_copy_ends_at_its_semicolon() -> None:
    text = r"COPY t FROM 'a;' NULL '\'; SELECT 1"
    assert split_script(text)[0].text == r"COPY t FROM 'a;' NULL '\'"
    assert split_script("COPY t")[0].text == "COPY t"
