"""Written pages use plain, literal English: none of the phrases that the prose guide replaced."""

from __future__ import annotations

import re

import pytest

from support.page_runner import DOCS

PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if "decisions" not in path.parts  # records of their time
)
# Each with what to write instead.
DENIED = {
    r"whoever": "the client, the user, the service",
    r"(?:some|every|no|any)body": "a user, every client, no process",
    r"(?:is|are|was|were) told": "receives, is informed, the error says",
    r"(?:any more|by now)": "nothing: pages are in the present tense",
    r"at times": "how often, or when",
    r"likewise": "the same, or repeat the text",
    r"anew": "again",
    r"lets? go of": "expires, releases, deletes",
    r"go(?:es)? home": "exits",
    r"said? so to": "reports",
    r"what is what": "the term",
}


def written(page):
    """Return a page without code, generated parts and comments."""
    text = (DOCS / page).read_text("utf-8")
    text = re.sub(r"<!-- made by.*?<!-- end -->|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_phrase_that_another_replaced(page):
    text = written(page)
    found = {
        match[0]: instead
        for pattern, instead in DENIED.items()
        for match in re.finditer(rf"\b{pattern}\b", text, re.IGNORECASE)
    }
    assert not found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_one_title(page):
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
