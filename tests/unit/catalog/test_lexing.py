"""Words, places, and scripts cut into statements."""

from __future__ import annotations

import pytest

from snowmelt.catalog.lexing import Piece, Place, TokenKind, split_script, tokens_of
from snowmelt.errors import StatementError


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


def test_a_script_is_cut_at_semicolons_outside_quotes_and_comments():
    script = (
        "SHOW TABLES; -- a; b\n;;\n  SELECT ';', \"x;y\", `p;q`, $$;$$ /* ; */ ;\nDROP ROLE r\n"
    )
    assert split_script(script) == (
        Piece("SHOW TABLES", Place(1, 1)),
        Piece("SELECT ';', \"x;y\", `p;q`, $$;$$ /* ; */", Place(3, 3)),
        Piece("DROP ROLE r", Place(4, 1)),
    )


@pytest.mark.parametrize("text", ["", " \n", "-- only a comment", ";;"])
def test_a_script_without_words_is_empty(text):
    assert split_script(text) == ()


def test_an_unclosed_string_is_shown_where_it_begins():
    with pytest.raises(StatementError) as caught:
        split_script("SHOW TABLES;\nCREATE DATABASE 'a;\nDROP x")
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (2, 17)
