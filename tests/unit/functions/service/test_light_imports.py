"""The kit alone loads neither Spark nor a database nor a web framework, nor what it may not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "pyspark", "pandas", "sqlalchemy", "sqlglot", "starlette", "uvicorn", "pyiceberg", "obstore",
    "pyarrow", "httpx", "cryptography",
)  # fmt: skip


@pytest.mark.slow
def test_importing_the_kit_loads_nothing_heavy():
    code = (
        "import sys, snowmelt.functions.service as kit; kit.RemoteService('s').asgi(); "
        f"print(sorted(set({HEAVY!r}) & set(m.partition('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
