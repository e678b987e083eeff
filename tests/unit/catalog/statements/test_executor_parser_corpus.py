"""Recorded statements mean what they meant, and every error says what it said, at its place.

`python tests/unit/catalog/statements/test_parser_corpus.py` writes the outcomes anew after a change
that was meant; the difference is read before it is committed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from snowmelt.catalog.sql.pipe_copy import parse_pipe_copy
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.errors import StatementError
from snowmelt.load.copy_parser import parse_copy

CORPUS = Path(__file__).parents[3] / "data" / "statements.jsonl"
PARSERS = {"statement": parse_statement, "copy": parse_copy, "pipe": parse_pipe_copy}


def outcome(kind: str, text: str) -> str:
    try:
        return repr(PARSERS[kind](text))
    except StatementError as error:
        return str(error)


def read_corpus() -> list[list[str]]:
    return [json.loads(line) for line in CORPUS.read_text().splitlines()]


@pytest.mark.parametrize("kind", PARSERS)
def test_recorded_statements_mean_what_they_meant(kind: str) -> None:
    recorded = {text: expected for each, text, expected in read_corpus() if each == kind}
    assert len(recorded) > 40
    assert {text: outcome(kind, text) for text in recorded} == recorded


if __name__ == "__main__":
    lines = [[kind, text, outcome(kind, text)] for kind, text, _ in read_corpus()]
    CORPUS.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
