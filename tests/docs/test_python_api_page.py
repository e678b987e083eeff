"""The page of the Python API has every public name, and no other."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

from support.page_runner import DOCS

PAGE = (DOCS / "reference" / "python-api.md").read_text("utf-8")
SECTIONS = dict(
    re.findall(r"^## (snowmelt[\w.]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)
# On the page of errors, a version, and the former name of another one.
ELSEWHERE = {"errors", "__version__", "Point"}


@pytest.mark.parametrize("module", SECTIONS)
def test_a_section_names_what_its_module_exports(module: Any) -> None:
    shown = re.findall(r"^::: ([\w.]+)$", SECTIONS[module], re.MULTILINE)
    exported = set(import_module(module).__all__) - ELSEWHERE
    assert {path.rpartition(".")[2] for path in shown} == exported
    for path in shown:
        home, _, name = path.rpartition(".")
        assert getattr(import_module(home), name) is getattr(import_module(module), name)
