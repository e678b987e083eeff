"""The page of settings is what the code says, and each setting says what it is for."""

from __future__ import annotations

import dataclasses

from settings_table import BEGIN, END, HEADINGS, PAGE, PLACED, table
from snowmelt.config import Settings


def test_the_page_of_settings_is_up_to_date():
    names = {each.name for each in dataclasses.fields(Settings)}
    assert set(HEADINGS) | set(PLACED) <= names
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert made == table(), "python tests/settings_table.py makes it anew"
