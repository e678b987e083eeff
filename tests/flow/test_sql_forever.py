"""`snowmelt sql` shows timestamps in UTC, up to the limits of the calendar, in any machine zone."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys

import pytest

from snowmelt.testing import LocalService

COMMAND = (sys.executable, "-m", "snowmelt", "sql")


@pytest.mark.slow
@pytest.mark.spark
def test_forever_is_shown_in_utc_on_a_machine_far_from_it() -> None:
    with LocalService() as service:
        table = service.create_table("demo.public.t", "id INT, l TIMESTAMP_LTZ(0)")
        channel = service.client().open_channel("c", table=table)
        times = ["0001-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
        channel.insert_rows([{"id": n, "l": text} for n, text in enumerate(times)], "1")
        channel.wait_for_commit("1", timeout=dt.timedelta(seconds=20))
        done = subprocess.run(
            [*COMMAND, f"SELECT * FROM {table} ORDER BY id", "--format", "csv"],
            env={
                **os.environ,
                "TZ": "Asia/Tokyo",
                "SNOWMELT_DATA_DIR": str(service.folder / "data"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.stdout.splitlines() == [
        "ID,L",
        "0,0001-01-02 00:00:00+00:00",
        "1,2026-01-01 00:00:00+00:00",
        "2,9999-12-31 23:59:59+00:00",
    ], done.stderr
