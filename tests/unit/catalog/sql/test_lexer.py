"""Words, and their places."""

from __future__ import annotations

from snowmelt.catalog.sql.lexer import Place, TokenKind, tokens_of


def test_words_that_belong_together_are_still_single_words():
    words = [token.text for token in tokens_of("cluster  by double\nprecision")]
    assert words == ["CLUSTER", "BY", "DOUBLE", "PRECISION", ""]


def test_every_token_knows_its_line_and_column():
    places = [token.place for token in tokens_of("a -- é\n  'b\nc' d\n")]
    assert places == [Place(1, 1), Place(2, 3), Place(3, 4), Place(3, 5)]


def test_quotes_are_undone():
    quoted, text, end = tokens_of("\"a\"\"b\" 'it''s'")
    assert (quoted.kind, quoted.text) == (TokenKind.QUOTED, 'a"b')
    assert (text.kind, text.text) == (TokenKind.STRING, "it's")
    assert end.kind is TokenKind.END
