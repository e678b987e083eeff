"""Fixtures by topic live in fix_*.py beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# Spark workers must run this interpreter, and everything stays on loopback.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

_TOPICS = ("fix_postgres", "fix_catalog", "fix_chunks", "fix_service", "fix_sdk", "fix_spark")
pytest_plugins = [topic for topic in _TOPICS if (Path(__file__).parent / f"{topic}.py").exists()]
