"""The tutorials do what they say: each command and block of code runs, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.page_runner import DOCS, PageRun

TUTORIALS = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "tutorials").glob("*.md"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_from_start_to_end(page: str, tmp_path: Path) -> None:
    with PageRun(page, tmp_path) as run:
        run.run()
