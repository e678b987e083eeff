"""Which statements are COPY."""

from __future__ import annotations

import pytest

from snowmelt.load.copy_ast import is_file_statement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("copy t FROM 'x'", True),
        ("\n -- a word\n /* and\nmore */ COPY\nt FROM STDIN", True),
        ("COPYING", False),
        ("-- COPY t\nSELECT 1", False),
        ("SELECT 'COPY t'", False),
        ("", False),
    ],
)
def test_a_copy_is_told_by_its_first_word(text: str, expected: bool) -> None:
    assert is_file_statement(text) is expected
