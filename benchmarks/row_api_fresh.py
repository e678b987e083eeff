"""Benchmark of the official SDK's freshness at a steady rate: from append to commit.

`row_api.py --fresh SECONDS` runs it. The script is the client process: it opens channels, appends
to them in turn at a given rate, and records the times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from harness import Secure
from sdk_speed import cpu_of
from workload import rows

from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database

_LOOK_S = 0.05


def measure(
    running: Secure, folder: Path, *, seconds: float, rate: int, channels: int
) -> dict[str, Any]:
    """Measure one client with a number of channels and a total rate of rows per second."""
    answer, gate = folder / "fresh.json", folder / "opened"
    told: dict[str, Any] = {
        "url": running.url,
        "private_key": running.private_key,
        "seconds": seconds,
        "batch": max(min(1_000, rate // channels), 1),
        "rate": rate,
        "channels": channels,
        "answer": str(answer),
        "gate": str(gate),
    }
    environment = os.environ | {"SSL_CERT_FILE": str(running.ca)}
    with (folder / "fresh.log").open("ab") as log:
        client = subprocess.Popen(
            [sys.executable, __file__, json.dumps(told)], stdout=log, stderr=log, env=environment
        )
    while client.poll() is None and not gate.exists():
        time.sleep(0.1)
    cpu, began, memory = cpu_of(running.started), time.monotonic(), []
    seen: dict[str, list[tuple[float, int]]] = {}
    database = open_and_upgrade_database(running.settings.catalog_url)
    query = sa.select(model.channels.c.name, model.channels.c.offset_token)
    while client.poll() is None:
        with database.reading() as connection:
            found = connection.execute(query).all()
        now = time.monotonic()
        for name, token in found:
            known = seen.setdefault(name, [])
            if token is not None and (not known or known[-1][1] < int(token)):
                known.append((now, int(token)))
        memory.append(resident(running.started.pid))
        time.sleep(_LOOK_S)
    database.close()
    if client.returncode:
        raise RuntimeError((folder / "fresh.log").read_text()[-2_000:])
    took = time.monotonic() - began
    written = json.loads(answer.read_text())
    ages = sorted(ages_of(written["appended"], seen))
    half = memory[len(memory) // 2 :]
    return {
        "channels": channels,
        "rows_per_s": round(len(ages) * told["batch"] / written["seconds"]),
        "p50_s": round(ages[len(ages) // 2], 3),
        "p99_s": round(ages[int(len(ages) * 0.99)], 3),
        "worst_s": round(ages[-1], 3),
        "service_cpu": round((cpu_of(running.started) - cpu) / took, 2),
        "memory_mb": [round(half[0] / 1e6), round(half[-1] / 1e6)],
    }


def ages_of(appended: list[list[Any]], seen: dict[str, list[tuple[float, int]]]) -> list[float]:
    """Return the seconds from append to commit of each batch."""
    ages = []
    places = dict.fromkeys(seen, 0)
    for name, token, at in appended:
        steps = seen[name]
        while steps[places[name]][1] < token:
            places[name] += 1
        ages.append(steps[places[name]][0] - at)
    return ages


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def append(told: dict[str, Any]) -> None:
    """Run the client: append rows and record the times."""
    from snowflake.ingest.streaming import StreamingIngestClient

    properties = {
        "url": told["url"],
        "account": "local",
        "user": "bench",
        "private_key": told["private_key"],
        "enable_telemetry_reporting": "false",
    }
    client = StreamingIngestClient("fresh", "BENCH", "PUBLIC", "P", properties=properties)
    names = [f"FRESH{number}" for number in range(told["channels"])]
    channels = [client.open_channel(name)[0] for name in names]
    batch = told["batch"]
    data = rows(100_000)
    Path(told["gate"]).touch()
    appended = []
    pause = batch / told["rate"]
    began = time.monotonic()
    number = 0
    while (now := time.monotonic()) < began + told["seconds"]:
        due = began + number * pause
        if now < due:
            time.sleep(due - now)
        place, start = number % len(channels), number * batch % (len(data) - batch)
        appended.append((names[place], number, time.monotonic()))
        channels[place].append_rows(data[start : start + batch], str(number), str(number))
        number += 1
    took = time.monotonic() - began
    client.wait_for_flush(120)
    # The last read of the catalog follows the last commit.
    time.sleep(4 * _LOOK_S)
    client.close()
    Path(told["answer"]).write_text(json.dumps({"appended": appended, "seconds": took}))


if __name__ == "__main__":
    append(json.loads(sys.argv[1]))
