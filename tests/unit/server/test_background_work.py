"""Housekeeping goes no further when its service stops; the next round does what is left."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from snowmelt.embedded import EmbeddedService
from snowmelt.server.background_work import Housekeeping

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = 1_000_000_000


def test_a_round_ends_at_once_when_the_service_stops(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path) as running:
        files = [tmp_path / "stage" / "p" / f"{number}.ndjson" for number in range(3)]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}\n")
            os.utime(file, (LONG_AGO, LONG_AGO))
        stopping = threading.Event()
        stopping.set()
        Housekeeping(running.service, stopping)()
        assert all(file.exists() for file in files)
        stopping.clear()
        Housekeeping(running.service, stopping)()
        assert not any(file.exists() for file in files)
