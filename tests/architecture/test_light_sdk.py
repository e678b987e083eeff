"""The SDK alone loads neither Spark nor a database nor a web framework; a service loads no Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "pyspark",
    "pandas",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "pyiceberg",
    "obstore",
    "polars",
)


@pytest.mark.slow
def test_importing_the_client_loads_nothing_heavy() -> None:
    code = (
        "import sys, snowmelt; snowmelt.Client; "
        f"print(sorted(set({HEAVY!r}) & set(m.partition('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_service_starts_without_what_it_may_never_need() -> None:
    late = ("pyspark", "pandas", "pyiceberg", "alembic", "httpx", "obstore", "polars")
    code = (
        "import sys, snowmelt.server.lifecycle; "
        f"print(sorted(set({late!r}) & set(m.partition('.')[0] for m in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_every_public_name_resolves() -> None:
    code = "import snowmelt; print([n for n in snowmelt.__all__ if getattr(snowmelt, n) is None])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
