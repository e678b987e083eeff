"""The documentation site builds, all of its links lead somewhere, and it needs no network."""

from __future__ import annotations

import importlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "site"))
# By name: for a type checker, a folder `build` of an earlier build would hide the module.
site_build: Any = importlib.import_module("build")


class Page(HTMLParser):
    """The links, the anchors and the loaded resources of a page."""

    def __init__(self, html: Any) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.anchors: set[str | None] = {"", "__skip"}
        self.loaded: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif given.get("src"):
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return site_build.build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site: Any) -> dict[Any, Any]:
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_link_leads_to_a_page_and_an_anchor_that_exist(site: Any, pages: Any) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute, as it is served from anywhere
            continue
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if file not in pages:
                if not file.exists():
                    broken.append((str(path.relative_to(site)), link))
            elif unquote(anchor) not in pages[file].anchors:
                broken.append((str(path.relative_to(site)), link))
    assert not broken


def test_pages_load_nothing_from_another_machine(pages: Any) -> None:
    assert [each for page in pages.values() for each in page.loaded if "//" in each] == []


def test_every_page_of_the_repository_is_in_the_site(site: Any) -> None:
    for page in site_build.pages().values():
        assert (site / page).with_suffix(".html").exists()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "site" / "mkdocs.yml").read_text("utf-8")
    listed = ("explanation/decisions/", "explanation/measurements/", "how-to/examples/")
    missing = [
        page
        for page in site_build.pages().values()
        if page not in navigation and not page.startswith(listed)
    ]
    assert not missing


@pytest.mark.parametrize("words", ["exactly once", "fenced"])
def test_the_search_index_finds_words_of_the_pages(site: Any, words: str) -> None:
    index = json.loads((site / "search.json").read_text("utf-8"))
    assert words in json.dumps(index).lower()


def test_a_link_to_a_file_that_is_no_page_fails_the_build() -> None:
    with pytest.raises(SystemExit, match="leads to no page"):
        site_build._LINK.sub(
            lambda match: site_build._page_link(
                "docs/index.md", {"docs/index.md": "index.md"}, match
            ),
            "[x](../pyproject.toml)",
        )
