"""What holds for every test; fixtures by topic live in `fixtures/`, helpers in `support/`."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

# What is imported and collected never dies: it need not be looked through for what did.
gc.disable()

# A shell has what it runs in the background ignore SIGINT, and every process of the run with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark workers must run this interpreter, and everything stays on loopback.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# A configuration file of whoever runs the tests has nothing to do with them.
os.environ["SNOWMELT_CONFIG"] = ""
# Clients sign as in an environment of their own: where awscrt is installed, botocore would sign with it.
os.environ.setdefault("BOTO_DISABLE_CRT", "true")
# Each Java lives for minutes at most: it had better not compile for hours of work.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Hundreds of processes are started. Where Python is told to write no bytecode each of them would
# compile all it imports, which takes seconds; so theirs goes to a folder that git does not see.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(TESTS.parent / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Everything that a test writes is made sure of on its disk; in memory that takes no time. What is
# left of a run is a gigabyte at most: folders of tests that passed go at once.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# On a machine that others use as well, how long an example took says nothing.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Half an hour is what all tests have together; benchmarks and reviews try more. The same examples in
# each run: what a change breaks is told apart from what nobody has tried yet, for which there
# is --hypothesis-profile=search.
settings.register_profile("thorough", _patient, max_examples=30, derandomize=True)
settings.register_profile("fast", _patient, max_examples=10, derandomize=True)
settings.register_profile("search", _patient, max_examples=300)
settings.load_profile("thorough")

pytest_plugins = [
    "support.xdist_groups",
    "support.merged_cases",
    "fixtures.postgres",
    "fixtures.catalog",
    "fixtures.chunks",
    "fixtures.replicas",
    "fixtures.backups",
    "fixtures.copy",
    "fixtures.service",
    "fixtures.services",
    "fixtures.s3",
    "fixtures.kafka",
    "fixtures.apache_kafka",
    "fixtures.kafka_streaming",
    "fixtures.sdk",
    "fixtures.rows",
    "fixtures.java",
    "fixtures.spark",
    "fixtures.functions",
    "fixtures.http",
    "fixtures.engines",
    "fixtures.browser",
]


# Engines need Maven and gigabytes of packages, and clusters minutes: `./run test engines` and
# `./run test clusters` run them.
collect_ignore = sorted({"engines", "clusters"} - {os.environ.get("SNOWMELT_TEST_MORE")})


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let Spark start sooner in a run of all tests: a hundred processes start it."""
    options = session.config.option
    if hasattr(session.config, "workerinput") or not options.numprocesses:
        return
    if "not spark" in options.markexpr:
        return
    warming = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "warm"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        warming.wait()

    session.config.add_cleanup(end)


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and only among what the tests make."""
    gc.freeze()
    gc.enable()
