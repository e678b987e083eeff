from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from snowmelt.catalog.model import UtcTimestamp

_instant = UtcTimestamp()
_dialect = sqlite.dialect()


@given(st.datetimes(timezones=st.timezones() | st.just(dt.UTC)))
def test_an_instant_survives_to_the_microsecond(value: dt.datetime) -> None:
    stored = _instant.process_bind_param(value, _dialect)
    assert _instant.process_result_value(stored, _dialect) == value.astimezone(dt.UTC)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(TypeError):
        _instant.process_bind_param(dt.datetime(2026, 1, 1), _dialect)
