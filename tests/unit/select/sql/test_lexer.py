from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.sql.lexer import SelectTokenKind, tokenize
from support.reference_select import refusal


def texts(statement: str, is_name: Callable[[Any], bool] | None = None) -> list[str]:
    return [token.text for token in tokenize(statement, is_name)][:-1]


def test_statement_is_cut_into_its_words() -> None:
    assert texts("select _1,'it''s' from s where a>=1.5e3;") == [
        *("select", "_1", ",", "it's", "from", "s", "where", "a", ">=", "1.5e3", ";")
    ]
    kinds = [token.kind for token in tokenize("a 1 'b' \"c\" `2010T` +")]
    assert kinds == [
        *(
            SelectTokenKind.WORD,
            SelectTokenKind.NUMBER,
            SelectTokenKind.STRING,
            SelectTokenKind.QUOTED,
            SelectTokenKind.TIMESTAMP,
            SelectTokenKind.SYMBOL,
            SelectTokenKind.END,
        )
    ]


def test_longest_name_with_hyphens_is_taken() -> None:
    names = {"a-b", "a-b-c", "x-1"}
    assert texts("a-b-c-d a-b-d a-c x-1 2-a-b", names.__contains__) == [
        *("a-b-c", "-", "d", "a-b", "-", "d", "a", "-", "c", "x-1", "2", "-", "a-b")
    ]


def test_path_stands_after_from_only() -> None:
    assert texts("select a/b from /tmp/x y.csv;") == [
        *("select", "a", "/", "b", "from", "/tmp/x", "y", ".", "csv", ";")
    ]


@pytest.mark.parametrize("opening", ["'", '"', "`"])
def test_what_is_not_closed_is_named(opening: str) -> None:
    with pytest.raises(SelectError, match=r"not closed.*\(line 2, column 3\)"):
        tokenize(f"a\n  {opening}b")


@given(st.text(max_size=40))
def test_strings_may_hold_anything(text: str) -> None:
    written = text.replace("'", "''")
    assert texts(f"'{written}'") == [text]


def test_no_comments() -> None:
    assert texts("1--1") == ["1", "-", "-", "1"]
    assert refusal("select 1 /* x */ from stdin") is not None
