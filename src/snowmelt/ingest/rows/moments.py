"""Texts of dates with times, read at once where all are of the one form that has one meaning."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SIGNS = ((4, "-"), (7, "-"), (13, ":"), (16, ":"))
_POINT, _Z = ord("."), ord("Z")
# What may stand between a date and a time, at that place.
_BETWEEN, _SEPARATORS = 10, (ord("T"), ord(" "))
# YYYY-MM-DDThh:mm:ss, and with six digits after a point.
_SHORTEST, _LONGEST = 19, 26
# Years 1000 to 2999, in microseconds since 1970.
_FIRST, _LAST = -30_610_224_000_000_000, 32_503_679_999_999_999


def moments(texts: pa.ChunkedArray, *, instants: bool) -> pa.ChunkedArray | None:
    """Return timestamps of texts as `2026-11-21T10:00:00.123456`, None where one has another form.

    A blank may stand for the T. With `instants` each ends in Z. Years are those from 1000 to 2999.

    Raises:
        ArrowException: A text of that form is no timestamp.
    """
    if not all(_are_formed(chunk.drop_null(), int(instants)) for chunk in texts.chunks):
        return None
    # What is not a digit between the signs is refused here.
    found = texts.cast(pa.timestamp("us", "UTC" if instants else None))
    bounds = pc.min_max(found.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return found if low is None or _FIRST <= low <= high <= _LAST else None


def _are_formed(texts: pa.StringArray, ending: int) -> bool:
    """Tell whether signs and lengths are those of the form, with so many letters Z at the end."""
    if not len(texts):
        return True
    _, places, data = texts.buffers()
    ends = np.frombuffer(places, np.int32, len(texts) + 1, texts.offset * 4)
    begins, lengths = ends[:-1], np.diff(ends) - ending
    if lengths.min() < _SHORTEST or lengths.max() > _LONGEST:
        return False
    letters = np.frombuffer(data, np.uint8)
    between = letters[begins + _BETWEEN]
    longer = begins[lengths > _SHORTEST]
    return bool(
        not (lengths == _SHORTEST + 1).any()
        and all((letters[begins + place] == ord(sign)).all() for place, sign in _SIGNS)
        and np.isin(between, _SEPARATORS).all()
        and (letters[longer + _SHORTEST] == _POINT).all()
        and (not ending or (letters[ends[1:] - 1] == _Z).all())
    )
