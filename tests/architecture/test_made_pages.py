"""Tables of the pages are what the code says, and each setting has its place."""

from __future__ import annotations

import dataclasses

import pytest

from snowmelt.config import Settings
from support.generated_pages import PARTS, renewed, shown
from support.settings_page import HEADINGS, PLACED


@pytest.mark.parametrize("page", PARTS)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert shown(page) == renewed(page), "python tests/support/generated_pages.py makes it anew"


def test_what_is_said_of_settings_is_said_of_some() -> None:
    names = {each.name for each in dataclasses.fields(Settings)}
    assert set(HEADINGS) | set(PLACED) <= names
