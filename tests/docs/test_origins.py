"""The page of origins names tests and benchmarks that exist."""

from __future__ import annotations

import re

from support.page_runner import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "explanation" / "origins.md").read_text("utf-8")


def test_named_tests_and_benchmarks_exist() -> None:
    named = re.findall(r"`((?:tests|benchmarks)/[^`]+)`", PAGE)
    assert len(named) > 100
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_statement_has_a_place_and_a_proof() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    for row in rows:
        assert all(cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]), row
