"""Files stay small, and each module of the package has a sentence that says what it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src" / "snowmelt").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_module_is_small_and_documented(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 800
    assert ast.get_docstring(ast.parse(text))
