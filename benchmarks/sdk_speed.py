"""Benchmark of Snowmelt's SDK and the official one on the same rows: rows/s, CPU, bytes, memory.

The official client writes to a server that only responds. Snowmelt's SDK writes to a service whose
rows can be queried after the commit. For the official SDK, a minimal parse of its JSON is added.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from harness import Running, key_pair
from report import Report
from workload import DDL

HERE = Path(__file__).parent
WAYS = {
    "insert_rows, 1,000": ("rows", 1_000),
    "insert_rows, 10,000": ("rows", 10_000),
    "insert_row": ("row", 1),
    "insert_arrow, 10,000": ("arrow", 10_000),
}
INLINE = {
    "max_buffered_kb_for_rowset_mode": "1000000",
    "target_rowset_payload_size_mb": "16",
    "max_rowset_payload_size_mb": "32",
}
_PARSE = """
import json, sys, time
import msgspec, pyarrow as pa, pyarrow.json as pj
sys.path.insert(0, sys.argv[1])
from workload import SCHEMA, rows
data = rows(200_000)
body = msgspec.json.Encoder(decimal_format="string").encode_lines(data)
packed = pa.Codec("zstd", compression_level=3).compress(body)
options = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
best = []
for _ in range(5):
    began = time.process_time()
    raw = pa.Codec("zstd").decompress(packed, len(body))
    pj.read_json(pa.BufferReader(raw), read_options=pj.ReadOptions(use_threads=False, block_size=1 << 24), parse_options=options)
    best.append((time.process_time() - began) / len(data))
print(json.dumps({"parse_s": sorted(best)[2], "json": len(body) / len(data)}))
"""


class Nothing(AbstractContextManager["Nothing"]):
    """Server that only responds, with its own certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "snowmelt", "cert", "--out", str(self._folder)]
        subprocess.run(command, check=True, capture_output=True)
        self.ca = next(self._folder.rglob("ca.pem"))
        pair = (self.ca.with_name("server.pem"), self.ca.with_name("server.key"))
        script = [sys.executable, HERE / "nothing_server.py", self.port, *pair]
        self._process = subprocess.Popen(list(map(str, script)))
        for _ in range(100):
            try:
                self.counts()
            except OSError:
                time.sleep(0.1)
            else:
                return self
        raise RuntimeError("the server that only answers does not")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def counts(self) -> dict[str, int]:
        context = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(f"{self.url}/counts", context=context) as answer:
            return dict(json.load(answer))


def write(told: dict[str, object], folder: Path, ca: Path) -> dict[str, float]:
    """Run one client process."""
    answer = folder / "answer.json"
    log = (folder / "writer.log").open("ab")
    subprocess.run(
        [sys.executable, str(HERE / "sdk_writer.py"), json.dumps(told | {"answer": str(answer)})],
        check=True,
        stdout=log,
        env=os.environ | {"SSL_CERT_FILE": str(ca)},
    )
    return dict(json.loads(answer.read_text()))


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Speed:
    """Measurements of one run, by SDK and mode."""

    def __init__(self, folder: Path, count: int, singles: int) -> None:
        self._folder = folder
        self._count = count
        self._singles = singles
        self._key = key_pair()[0]
        self.found: dict[str, list[dict[str, float]]] = {}

    def rows_of(self, how: str) -> int:
        """Return the number of rows for the measurement of a mode."""
        return self._singles if how == "row" else self._count

    def official(self, way: str, server: Nothing, properties: dict[str, str], label: str) -> None:
        """Measure the official SDK in one mode."""
        how, batch = WAYS[way]
        count = self.rows_of(how)
        told = {"who": "official", "how": how, "rows": count, "batch": batch, "url": server.url}
        told |= {"private_key": self._key, "properties": properties}
        before = server.counts()["bytes"]
        measured = write(told, self._folder, server.ca)
        measured["wire"] = (server.counts()["bytes"] - before) / count
        self._keep(f"official{label}: {way}", measured, count)

    def ours(self, way: str, running: Running, turn: int, ca: Path) -> None:
        """Measure Snowmelt's SDK in one mode, until its rows can be queried."""
        how, batch = WAYS[way]
        count = self.rows_of(how)
        table = f"bench.public.t_{how}_{batch}_{turn}"
        running.execute(f"CREATE TABLE {table} ({DDL})")
        told = {"who": "ours", "how": how, "rows": count, "batch": batch, "table": table}
        told |= {"url": running.url, "private_key": running.private_key}
        stage = running.folder / "stage"
        before, cpu = _size(stage), cpu_of(running.started)
        measured = write(told, self._folder, ca)
        measured["service_s"] = cpu_of(running.started) - cpu
        measured["wire"] = (_size(stage) - before) / count
        self._keep(f"ours: {way}", measured, count)

    def _keep(self, name: str, measured: dict[str, float], count: int) -> None:
        measured["rate"] = count / measured["seconds"]
        measured["cpu_us"] = measured["cpu_s"] / count * 1e6
        measured["service_us"] = measured.get("service_s", 0.0) / count * 1e6
        self.found.setdefault(name, []).append(measured)
        print(f"{name}: {measured['rate']:,.0f} rows/s, {measured['cpu_us']:.2f} us", flush=True)

    def median(self, name: str, what: str) -> float:
        """Return the median over the turns."""
        return statistics.median(one[what] for one in self.found[name])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.bdec"))


def measure(options: argparse.Namespace) -> tuple[Speed, dict[str, float]]:
    """Run all modes of both SDKs in turns."""
    with tempfile.TemporaryDirectory(prefix="snowmelt-speed-") as name:
        folder = Path(name)
        speed = Speed(folder, options.rows, options.singles)
        command = [sys.executable, "-c", _PARSE, str(HERE)]
        parsed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        with Nothing(folder) as server, Running() as running:
            # Warm up the service, whose first commit takes 1.5 s longer.
            Speed(folder, 200_000, 1).ours("insert_rows, 10,000", running, options.turns, server.ca)
            for turn in range(options.turns):
                for way, (how, _) in WAYS.items():
                    if options.only and options.only not in way:
                        continue
                    speed.ours(way, running, turn, server.ca)
                    if how != "arrow" and not options.alone:
                        speed.official(way, server, {}, "")
                        speed.official(way, server, INLINE, ", inline")
    return speed, parsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--singles", type=int, default=300_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--alone", action="store_true", help="ours only; keeps no page")
    options = parser.parse_args()
    speed, parsed = measure(options)
    if options.alone:
        for name in speed.found:
            print(
                {
                    what: round(speed.median(name, what), 3)
                    for what in ("cpu_us", "service_us", "wire", "rate", "peak_bytes", "held_bytes")
                }
            )
        return
    report = Report(
        "sdk_speed",
        "The SDK beside the official one, on the same rows",
        (
            "who and how",
            "rows/s",
            "client CPU µs a row",
            "service CPU µs",
            "µs until it can be queried",
            "bytes a row on the wire",
            "memory above the rows, MB",
        ),
    )
    parse_us = parsed["parse_s"] * 1e6
    for name in speed.found:
        rest = speed.median(name, "service_us") if name.startswith("ours") else parse_us
        cpu = speed.median(name, "cpu_us")
        above = statistics.median(
            one["peak_bytes"] - one["held_bytes"] for one in speed.found[name]
        )
        report.add(
            name,
            f"{speed.median(name, 'rate'):,.0f}",
            f"{cpu:.2f}",
            f"{speed.median(name, 'service_us'):.2f}" if name.startswith("ours") else "–",
            f"{cpu + rest:.2f}",
            f"{speed.median(name, 'wire'):.1f}",
            f"{above / 1e6:.0f}",
        )
    report.remark(
        f"{options.rows:,} rows of ten columns ({parsed['json']:.0f} bytes of JSON each), "
        f"{options.singles:,} one at a time; {options.turns} turns, medians. Each client is a process of its own."
    )
    report.remark(
        f"The cheapest parse of the official SDK's JSON: {parse_us:.2f} µs a row (zstd and pyarrow.json with the schema)."
    )
    _ratios(speed, report, parse_us)
    report.keep()


def _ratios(speed: Speed, report: Report, parse_us: float) -> None:
    best = max(speed.median(name, "rate") for name in speed.found if name.startswith("official"))
    for way, (how, _) in WAYS.items():
        if f"ours: {way}" not in speed.found:
            continue
        ours = speed.median(f"ours: {way}", "rate")
        if how == "arrow":
            report.remark(f"{way}: {ours / best:.2f} of the official SDK's best (goal 2.5).")
            continue
        peer = speed.median(f"official: {way}", "rate")
        cpu = speed.median(f"ours: {way}", "cpu_us") + speed.median(f"ours: {way}", "service_us")
        theirs = speed.median(f"official: {way}", "cpu_us") + parse_us
        wire = speed.median(f"ours: {way}", "wire") / speed.median(f"official: {way}", "wire")
        report.remark(
            f"{way}: {ours / peer:.2f} of the official rows/s (goal 1.0), {cpu / theirs:.2f} of its CPU until a query (goal 0.8), {wire:.2f} of its bytes (goal 1.1)."
        )


if __name__ == "__main__":
    main()
