"""What kernels read as timestamps is what the evaluator's own reader says; the rest they leave."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.kernels.slices import StringSlices
from snowmelt.select.kernels.timestamps import extract_packed_field, parse_timestamps, to_utc_micros
from snowmelt.select.timestamps import extract_date_part, parse_iso_timestamp

_PARTS = ("year", "month", "day", "hour", "minute", "second")
_FINE = st.builds(
    "{:%Y-%m-%d}{}{:%H:%M:%S}{}{}".format,
    st.dates(),
    st.sampled_from("TT t"),
    st.times(),
    st.one_of(st.just(""), st.text("0123456789", max_size=8).map(".{}".format)),
    st.sampled_from(
        ["", "Z", "z", "+05:30", "-00:00", "+23:59", "-23:59", "+24:00", "+0530", "Z "]
    ),
)
_BROKEN = st.tuples(_FINE, st.integers(0, 30), st.sampled_from("0139-:.TZ é")).map(
    lambda t: t[0][: t[1]] + t[2] + t[0][t[1] + 1 :]
)
_TEXTS = st.lists(st.one_of(_FINE, _BROKEN, st.text("0123456789-:T.Z+", max_size=30)), min_size=1)


def slices(texts: list[str]) -> StringSlices:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(each) + 1 for each in encoded]) - 1
    starts = ends - [len(each) for each in encoded]
    buffer = np.frombuffer(b",".join(encoded) + b"," + bytes(64), np.uint8)
    return StringSlices(
        buffer, starts.astype(np.int32), ends.astype(np.int32), np.zeros(len(texts), np.uint8)
    )


@pytest.mark.slow
@given(_TEXTS)
def test_timestamps_are_read_as_the_evaluator_reads_them(texts: list[str]) -> None:
    instants, odd = parse_timestamps(slices(texts))
    micros = to_utc_micros(instants).tolist()
    parts = {part: extract_packed_field(part, instants).tolist() for part in _PARTS}
    for row, text in enumerate(texts):
        if odd[row]:
            continue
        expected = parse_iso_timestamp(text)
        assert expected is not None, text
        assert micros[row] * 1000 == expected.instant, text
        for part in _PARTS:
            assert parts[part][row] == extract_date_part(part, expected), (text, part)


@given(st.datetimes(), st.sampled_from(["", "Z", "+01:00", "-11:30"]))
def test_the_usual_form_is_left_to_nobody(moment: dt.datetime, offset: Any) -> None:
    # Years are written with four digits.
    text = moment.replace(year=max(moment.year, 1000)).isoformat(sep="T") + offset
    assert not parse_timestamps(slices([text]))[1][0]
