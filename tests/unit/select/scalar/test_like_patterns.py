from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.scalar.like_patterns import parse_like_pattern
from support.reference_select import AWS, refusal, value

ALPHABET = st.text("ab%_$\n", max_size=12)


@given(ALPHABET, ALPHABET)
def test_like_agrees_with_a_regular_expression(text: str, pattern: str) -> None:
    expression = "".join(
        ".*" if character == "%" else "." if character == "_" else re.escape(character)
        for character in pattern
    )
    expected = re.fullmatch(expression, text, re.DOTALL) is not None
    assert parse_like_pattern(pattern).matches(text) is expected


@given(st.text("ab%_$", max_size=12))
def test_escaped_text_is_like_itself_only(text: str) -> None:
    pattern = re.sub(r"([%_$])", r"$\1", text)
    assert parse_like_pattern(pattern, "$").matches(text)
    assert not parse_like_pattern(pattern, "$").matches(text + "a")


def test_no_pattern_takes_exponential_time() -> None:
    assert not parse_like_pattern("%a" * 60 + "%b").matches("a" * 5000)


@pytest.mark.parametrize("escape", ["''", "'ab'"])
def test_escape_is_one_character(escape: str) -> None:
    assert refusal(f"select 'a' like 'a' escape {escape} from stdin") == "LikeInvalidInputs"


def test_escape_at_the_end_of_the_pattern_is_refused() -> None:
    assert refusal("select 'a' like 'a$' escape '$' from stdin") == "LikeInvalidInputs"


def test_like_with_null_is_unknown_and_with_numbers_refused() -> None:
    assert value("null like 'a'", AWS) is None
    assert value("'a' like 'a' escape null", AWS) is None
    assert refusal("select 1 like '1' from stdin") == "LikeInvalidInputs"
