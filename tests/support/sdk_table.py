"""Table for the SDK's tests, and rows for it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixtures.service import ServiceProcess


T = "sdk.public.t"
ERRORS = "sdk.public.errors"
DDL = "CREATE TABLE sdk.public.t (id NUMBER(10,0) NOT NULL, name VARCHAR, at TIMESTAMP_NTZ)"
GRANT = "GRANT INSERT ON TABLE sdk.public.t TO ROLE loading"
LATE = dt.timedelta(minutes=10)
SOON = dt.timedelta(seconds=200)
BAD = {"id": "nonsense"}


def rows(first: int, last: int) -> list[Any]:
    """Return rows with IDs in [first, last)."""
    return [{"id": n, "name": f"row {n}", "at": "2026-11-21T10:00:00"} for n in range(first, last)]


def blobs(service: ServiceProcess) -> list[Any]:
    """Return all blobs on the service's stage."""
    return list((service.data_dir / "stage").rglob("*.bdec"))
