"""Random operations of clients, loads and statements beside kills: all readers agree with a model.

`./run soak system-model` runs more, with new seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.system_model.history import HistoryOptions, run_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_readers_return_what_a_model_of_all_operations_contains(
    tmp_path: Path, engine_python: Path
) -> None:
    result = run_history(tmp_path, HistoryOptions(seed=273, steps=70, engine_python=engine_python))
    assert result.differences == []
    assert result.counts["rows inserted"] > 0
    assert result.counts["kills of the service"] > 0
    assert result.counts["kills of clients"] > 0
    assert result.counts["values by plain query"] > 0
    assert result.counts["values by PyIceberg"] > 0
    assert result.counts["integrity checks"] > 0
