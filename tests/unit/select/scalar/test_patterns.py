from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.patterns import format_timestamp, parse_like_pattern
from snowmelt.select.timestamps import parse_iso_timestamp
from support.reference_select import AWS, refusal, value

ALPHABET = st.text("ab%_$\n", max_size=12)


@given(ALPHABET, ALPHABET)
def test_like_agrees_with_a_regular_expression(text, pattern):
    expression = "".join(
        ".*" if character == "%" else "." if character == "_" else re.escape(character)
        for character in pattern
    )
    expected = re.fullmatch(expression, text, re.DOTALL) is not None
    assert parse_like_pattern(pattern).matches(text) is expected


@given(st.text("ab%_$", max_size=12))
def test_escaped_text_is_like_itself_only(text):
    pattern = re.sub(r"([%_$])", r"$\1", text)
    assert parse_like_pattern(pattern, "$").matches(text)
    assert not parse_like_pattern(pattern, "$").matches(text + "a")


def test_no_pattern_takes_exponential_time():
    assert not parse_like_pattern("%a" * 60 + "%b").matches("a" * 5000)


@pytest.mark.parametrize("escape", ["''", "'ab'"])
def test_escape_is_one_character(escape):
    assert refusal(f"select 'a' like 'a' escape {escape} from stdin") == "LikeInvalidInputs"


def test_escape_at_the_end_of_the_pattern_is_refused():
    assert refusal("select 'a' like 'a$' escape '$' from stdin") == "LikeInvalidInputs"


def test_like_with_null_is_unknown_and_with_numbers_refused():
    assert value("null like 'a'", AWS) is None
    assert value("'a' like 'a' escape null", AWS) is None
    assert refusal("select 1 like '1' from stdin") == "LikeInvalidInputs"


@pytest.mark.parametrize(
    ("text", "picture", "expected"),
    [
        ("1969-07-20T20:18Z", "MMMM d, y", "July 20, 1969"),
        ("1969-07-20T20:18Z", "MMM d, yyyy", "Jul 20, 1969"),
        ("1969-07-20T20:18Z", "M-d-yy", "7-20-69"),
        ("1969-07-20T20:18Z", "MM-d-y", "07-20-1969"),
        ("1969-07-20T20:18Z", "MMMM d, y h:m a", "July 20, 1969 8:18 PM"),
        ("1969-07-20T20:18Z", "y-MM-dd'T'H:m:ssX", "1969-07-20T20:18:00Z"),
        ("1969-07-20T20:18+08:00", "y-MM-dd'T'H:m:ssX", "1969-07-20T20:18:00+08"),
        ("1969-07-20T20:18+08:00", "y-MM-dd'T'H:m:ssXXXX", "1969-07-20T20:18:00+0800"),
        ("1969-07-20T20:18+08:00", "y-MM-dd'T'H:m:ssXXXXX", "1969-07-20T20:18:00+08:00"),
        (
            "1969-07-20T00:08:01.123456789Z",
            "hh:HH:mm:ss.SSS n MMMMM",
            "12:00:08:01.123 123456789 J",
        ),
        ("1969-07-20T00:08-05:30", "x xx xxx X XX XXX", "-0530 -0530 -05:30 -0530 -0530 -05:30"),
        ("1969-07-20T00:08Z", "x xxx XXX ''o'clock'''", "+00 +00:00 Z 'o'clock'"),
    ],
)
def test_picture_shows_the_timestamp(text, picture, expected):
    if "o'clock" in picture:
        picture, expected = "x xxx XXX ''d 'o''clock'", "+00 +00:00 Z '20 o'clock"
    assert format_timestamp(parse_iso_timestamp(text), picture) == expected


@pytest.mark.parametrize(
    ("picture", "code"),
    [
        ("yyy", "EvaluatorInvalidTimestampFormatPatternToken"),
        ("ddd", "EvaluatorInvalidTimestampFormatPatternToken"),
        ("S" * 10, "EvaluatorInvalidTimestampFormatPatternToken"),
        ("q", "EvaluatorInvalidTimestampFormatPatternSymbol"),
        ("y'T", "EvaluatorUnterminatedTimestampFormatPatternToken"),
    ],
)
def test_picture_that_stands_for_nothing_is_refused(picture, code):
    with pytest.raises(SelectError) as refused:
        format_timestamp(parse_iso_timestamp("2000T"), picture)
    assert refused.value.s3_code == code


@given(st.text("yMdahHmsSnXx' :é", max_size=10))
def test_any_picture_is_shown_or_refused(picture):
    try:
        shown = format_timestamp(parse_iso_timestamp("2000T"), picture)
    except SelectError as error:
        shown = error.s3_code
    assert isinstance(shown, str)
