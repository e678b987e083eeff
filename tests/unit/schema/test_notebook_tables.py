from __future__ import annotations

from html.parser import HTMLParser

from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.client.channel import InsertResult
from snowmelt.client.statements import StatementRows
from snowmelt.loaders.copy_job import CopyResult
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.schema.types import TableName

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


def test_a_load_shows_counts_failed_files_and_reasons_as_text() -> None:
    result = CopyResult(
        "load-1",
        TableName("D", "S", "T"),
        LoadTotals(files=2, rows=1, rejects=1, bytes=10),
        skipped_files=0,
        reject_reasons=((HOSTILE, 1),),
        failed_files=((HOSTILE, "it is no CSV"),),
    )
    shown = Cells(result._repr_html_())
    assert "script" not in shown.tags
    assert {"load-1", HOSTILE, "it is no CSV", "Rejected records"} <= set(shown.texts)
