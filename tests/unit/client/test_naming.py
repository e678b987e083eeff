"""Table names are split at dots outside quotes."""

from __future__ import annotations

import pytest

from snowmelt.client.naming import split_table_name
from snowmelt.errors import ConfigurationError


def test_parts_stay_as_typed():
    assert split_table_name("db.Schema.t") == ("db", "Schema", "t")
    assert split_table_name('"a.b"."c""d".t') == ('"a.b"', '"c""d"', "t")


@pytest.mark.parametrize("text", ["t", "s.t", "a.b.c.d", "a..c", 'a."".c', 'a.b."c'])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"database\.schema\.table"):
        split_table_name(text)
