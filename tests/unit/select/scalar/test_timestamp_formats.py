from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.timestamp_formats import format_timestamp
from snowmelt.select.timestamps import Timestamp, parse_iso_timestamp


def read(text: str) -> Timestamp:
    found = parse_iso_timestamp(text)
    assert found is not None
    return found


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
def test_picture_shows_the_timestamp(text: str, picture: str, expected: str) -> None:
    if "o'clock" in picture:
        picture, expected = "x xxx XXX ''d 'o''clock'", "+00 +00:00 Z '20 o'clock"
    assert format_timestamp(read(text), picture) == expected


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
def test_picture_that_stands_for_nothing_is_refused(picture: str, code: str) -> None:
    with pytest.raises(SelectError) as refused:
        format_timestamp(read("2000T"), picture)
    assert refused.value.s3_code == code


@given(st.text("yMdahHmsSnXx' :é", max_size=10))
def test_any_picture_is_shown_or_refused(picture: str) -> None:
    try:
        shown = format_timestamp(read("2000T"), picture)
    except SelectError as error:
        shown = error.s3_code
    assert isinstance(shown, str)
