"""The tutorials do what they say: each command and block of code runs, and prints what is shown."""

from __future__ import annotations

import pytest

from support.page_runner import DOCS, PageRun
from support.ports import free_port

TUTORIALS = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "tutorials").glob("*.md"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_from_start_to_end(page, tmp_path):
    with PageRun(page, tmp_path, (free_port(), free_port())) as run:
        run.run()
