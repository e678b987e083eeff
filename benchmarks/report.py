"""Prints a benchmark's table and keeps it in benchmarks/results with machine, versions and date.

A page may have a heading below its measurements, with what profiles said and what was tried,
written by hand; a new run leaves that part as it is.
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
    """Name processor, cores, memory and Python."""
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
    """Name the commit that is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _findings(page: Path) -> str:
    """Return what was written by hand below the page's measurements, to be kept with new ones."""
    text = page.read_text() if page.exists() else ""
    heading = text.find("\n## Profile")
    return "" if heading < 0 else text[heading:]


def keep_page(subject: str, question: str, body: list[str]) -> Path:
    """Write the lines as a page under its question, with date and machine, and print it whole."""
    now = dt.datetime.now(dt.UTC).date()
    head = [f"# {question}", "", f"{now} · commit {commit()} · {machine()}", "", _versions(), ""]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{subject}.md"
    path.write_text("\n".join([*head, *body]).rstrip() + "\n" + _findings(path))
    print("\n" + path.read_text())
    return path


@dataclass
class Report:
    """One question, the table that answers it, and remarks."""

    subject: str
    question: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row and show it at once."""
        row = tuple(str(cell) for cell in cells)
        self.rows.append(row)
        print(" | ".join(row), flush=True)

    def remark(self, text: str) -> None:
        """Add a line below the table."""
        self.remarks.append(text)
        print(text, flush=True)

    def keep(self) -> Path:
        """Write the page and print it whole."""
        self.remarks.append(f"Load average at the end: {os.getloadavg()[0]:.1f}.")
        head = ["| " + " | ".join(self.columns) + " |", "|" + " --- |" * len(self.columns)]
        body = ["| " + " | ".join(row) + " |" for row in self.rows]
        remarks = [f"* {remark}" for remark in self.remarks]
        return keep_page(self.subject, self.question, [*head, *body, "", *remarks])
