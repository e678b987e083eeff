from __future__ import annotations

from html.parser import HTMLParser

from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.client.channel import InsertResult
from snowmelt.client.statements import StatementRows
from snowmelt.schema.notebook_tables import render_notebook_table

HOSTILE = "<script>alert(1)</script>"


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_values_and_names_are_text() -> None:
    shown = Cells(render_notebook_table((HOSTILE,), [(HOSTILE,), (None,)], HOSTILE))
    assert "script" not in shown.tags
    assert shown.texts == [HOSTILE, HOSTILE, HOSTILE, "NULL"]


def test_long_results_and_values_are_cut() -> None:
    shown = render_notebook_table(("a",), [("x" * 1_000_000,)] * 1_000, "Rows: 1,000")
    assert "the first 20 are shown" in shown
    assert len(shown) < 5_000


def test_results_show_themselves() -> None:
    rows = StatementRows(("name",), [(HOSTILE,)])._repr_html_()
    assert "script" not in Cells(rows).tags
    assert "Table T created." in StatementResult(message="Table T created.")._repr_html_()
    assert "No row was rejected" in InsertResult()._repr_html_()
