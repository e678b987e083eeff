"""Words, and their places."""

from __future__ import annotations

from snowmelt.catalog.sql.lexer import SourcePosition, TokenKind, tokenize


def test_words_that_belong_together_are_still_single_words():
    words = [token.text for token in tokenize("cluster  by double\nprecision")]
    assert words == ["CLUSTER", "BY", "DOUBLE", "PRECISION", ""]


def test_every_token_knows_its_line_and_column():
    places = [token.position for token in tokenize("a -- é\n  'b\nc' d\n")]
    assert places == [
        SourcePosition(1, 1),
        SourcePosition(2, 3),
        SourcePosition(3, 4),
        SourcePosition(3, 5),
    ]


def test_quotes_are_undone():
    quoted, text, end = tokenize("\"a\"\"b\" 'it''s'")
    assert (quoted.kind, quoted.text) == (TokenKind.QUOTED, 'a"b')
    assert (text.kind, text.text) == (TokenKind.STRING, "it's")
    assert end.kind is TokenKind.END
