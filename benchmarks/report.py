"""Report of a benchmark: prints a table, and stores it in benchmarks/results with machine and date.

A page may have a handwritten section below the measurements, for example on profiles and
experiments. A new run preserves that section.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    *("pyarrow", "pyspark", "pyiceberg", "sqlalchemy", "deltalake", "numpy", "numba"),
    *("duckdb", "polars", "datafusion"),
)


def machine() -> str:
    """Return processor, cores, memory and Python version as text."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def commit() -> str:
    """Return the current commit ID."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _findings(page: Path) -> str:
    """Return the handwritten section of a page."""
    text = page.read_text() if page.exists() else ""
    heading = text.find("\n## Profile")
    return "" if heading < 0 else text[heading:]


def keep_page(subject: str, question: str, body: list[str]) -> Path:
    """Write and print a page with title, date, machine and these lines."""
    now = dt.datetime.now(dt.UTC).date()
    head = [f"# {question}", "", f"{now} · commit {commit()} · {machine()}", "", _versions(), ""]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{subject}.md"
    path.write_text("\n".join([*head, *body]).rstrip() + "\n" + _findings(path))
    print("\n" + path.read_text())
    return path


@dataclass
class Report:
    """Report of a benchmark: title, table and remarks."""

    subject: str
    question: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row and print it."""
        row = tuple(str(cell) for cell in cells)
        self.rows.append(row)
        print(" | ".join(row), flush=True)

    def remark(self, text: str) -> None:
        """Add a line below the table."""
        self.remarks.append(text)
        print(text, flush=True)

    def keep(self) -> Path:
        """Write and print the page."""
        self.remarks.append(f"Load average at the end: {os.getloadavg()[0]:.1f}.")
        head = ["| " + " | ".join(self.columns) + " |", "|" + " --- |" * len(self.columns)]
        body = ["| " + " | ".join(row) + " |" for row in self.rows]
        remarks = [f"* {remark}" for remark in self.remarks]
        return keep_page(self.subject, self.question, [*head, *body, "", *remarks])
