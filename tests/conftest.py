"""Fixtures by topic live in fix_*.py beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

# Spark workers must run this interpreter, and everything stays on loopback.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# Hundreds of processes are started. Where Python is told to write no bytecode each of them would
# compile all it imports, which takes seconds; so theirs goes to a folder that git does not see.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(TESTS.parent / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a machine that others use as well, how long an example took says nothing.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", _patient)
settings.register_profile("fast", _patient, max_examples=20)
settings.load_profile("thorough")

_TOPICS = (
    "fix_postgres",
    "fix_catalog",
    "fix_chunks",
    "fix_copy",
    "fix_service",
    "fix_services",
    "fix_s3",
    "fix_kafka",
    "fix_sdk",
    "fix_rows",
    "fix_java",
    "fix_spark",
    "fix_functions",
)
pytest_plugins = [topic for topic in _TOPICS if (TESTS / f"{topic}.py").exists()]

# What is started once for a run, dear things first: the tests that use it stay in one process.
_SHARED = ("spark", "kafka", "seaweed", "s3", "shared_service")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what belongs together when several processes share the run, the longest first."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        group = next((name for name in _SHARED if name in used), item.nodeid.partition("::")[0])
        item.add_marker(pytest.mark.xdist_group(group))
        groups.setdefault(group, []).append(item)
    items[:] = [item for group in sorted(groups, key=_place) for item in groups[group]]


def _place(group: str) -> tuple[int, str]:
    """Whole minutes come first and unit tests last, so that all processes end together."""
    if group in _SHARED:
        return _SHARED.index(group), group
    folders = ("tests/fault", "tests/model", "tests/architecture", "tests/flow", "tests/contract")
    place = [number for number, folder in enumerate(folders) if group.startswith(folder)]
    return len(_SHARED) + (place[0] if place else len(folders)), group
