"""Table names are split at dots outside quotes; offset tokens are texts that can be kept."""

from __future__ import annotations

import pytest

from snowmelt.client.channel_state import check_offset_token, split_table_name
from snowmelt.errors import ConfigurationError, UserError


def test_parts_stay_as_typed() -> None:
    assert split_table_name("db.Schema.t") == ("db", "Schema", "t")
    assert split_table_name('"a.b"."c""d".t') == ('"a.b"', '"c""d"', "t")


@pytest.mark.parametrize("text", ["t", "s.t", "a.b.c.d", "a..c", 'a."".c', 'a.b."c'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"database\.schema\.table"):
        split_table_name(text)


@pytest.mark.parametrize(
    ("token", "why"), [(5, "a string, not int"), ("a\0b", "NUL"), ("\ud800", "not valid Unicode")]
)
def test_an_offset_token_that_no_catalog_keeps_is_refused(token: int | str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_offset_token(token)
    check_offset_token(None)
    check_offset_token("ä\n😀")
