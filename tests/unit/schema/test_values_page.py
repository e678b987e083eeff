"""The page about values says what the code does."""

from __future__ import annotations

from sdk_values_table import BEGIN, END, PAGE, table


def test_the_table_of_python_types_is_made_from_the_code():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), "run tests/sdk_values_table.py"
