"""Written pages use plain, literal English: none of the phrases that the prose guide replaced."""

from __future__ import annotations

import re

import pytest

from support.page_runner import DOCS
from support.plain_english import find_denied

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def written(page: str) -> str:
    """Return a page without code, generated parts and comments."""
    text = (DOCS / page).read_text("utf-8")
    text = re.sub(r"<!-- made by.*?<!-- end -->|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_phrase_that_another_replaced(page: str) -> None:
    assert not find_denied(written(page))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_one_title(page: str) -> None:
    assert (
        len(
            re.findall(
                r"^# ",
                re.sub(r"```.*?```", "", (DOCS / page).read_text("utf-8"), flags=re.DOTALL),
                re.MULTILINE,
            )
        )
        == 1
    )
