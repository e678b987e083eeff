"""Each guarantee names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.page_runner import DOCS

ROOT = Path(__file__).parents[2]
PAGE = (DOCS / "explanation" / "guarantees.md").read_text("utf-8")


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`((?:tests|benchmarks)/[^`]*)`", PAGE))
    assert len(named) > 50
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []


def test_guarantees_are_numbered_without_gaps() -> None:
    for section in PAGE.split("\n## ")[1:]:
        numbers = re.findall(r"^\| ([A-Z])(\d+) \|", section, re.MULTILINE)
        assert [int(number) for _, number in numbers] == list(range(1, len(numbers) + 1))
        assert len({letter for letter, _ in numbers}) == 1
