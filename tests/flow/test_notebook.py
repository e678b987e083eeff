"""The notebook of the examples runs from start to end, and its results show themselves as HTML."""

from __future__ import annotations

import ast
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


class TextOfMarkup(HTMLParser):
    """Text of markup in which every element is closed and none is a script."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert attrs == []
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), namespace)
        return None
    del tree.body[-1]
    exec(compile(tree, "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


@pytest.mark.slow
def test_the_notebook_runs_and_its_results_show_themselves() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "it is stored without outputs"
    shown: dict[str, str] = {}
    namespace: dict[str, Any] = {}
    try:
        for source in sources:
            value = run_cell(source, namespace)
            if hasattr(value, "_repr_html_"):
                shown[source] = TextOfMarkup(value._repr_html_()).text
    finally:
        # Closing twice does no harm.
        namespace["service"].close()
    texts = list(shown.values())
    for expected in ("Rejected rows: 1", "EVENTS-0", "first", "two", "monday.csv", "5 minutes"):
        assert any(expected in text for text in texts), (expected, texts)
