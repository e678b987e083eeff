"""Row of ten columns that all benchmarks write."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal

import pyarrow as pa

DDL = (
    "id NUMBER(18,0) NOT NULL, at TIMESTAMP_LTZ(6), local TIMESTAMP_NTZ(6), price NUMBER(12,2), "
    "x FLOAT, y FLOAT, ok BOOLEAN, kind VARCHAR(16), city VARCHAR(32), note VARCHAR(200)"
)
SCHEMA = pa.schema(
    [
        pa.field("ID", pa.int64()),
        pa.field("AT", pa.timestamp("us", tz="UTC")),
        pa.field("LOCAL", pa.timestamp("us")),
        pa.field("PRICE", pa.decimal128(12, 2)),
        pa.field("X", pa.float64()),
        pa.field("Y", pa.float64()),
        pa.field("OK", pa.bool_()),
        pa.field("KIND", pa.string()),
        pa.field("CITY", pa.string()),
        pa.field("NOTE", pa.string()),
    ]
)
_KINDS = ("view", "click", "order", "return", "rating")
_CITIES = ("Lisbon", "Oslo", "Nairobi", "Quito", "Hanoi", "Tbilisi", "Perth", "Halifax")


def rows(count: int, *, seed: int = 1, first: int = 0) -> list[dict[str, object]]:
    """Return `count` dict rows with IDs from `first`. Deterministic for a seed."""
    pick = random.Random(seed)
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = []
    for number in range(first, first + count):
        at = start + dt.timedelta(microseconds=number * 1_237)
        made.append(
            {
                "ID": number,
                "AT": at,
                "LOCAL": at.replace(tzinfo=None),
                "PRICE": Decimal(pick.randrange(1_000_000)).scaleb(-2),
                "X": pick.random(),
                "Y": pick.gauss(0, 1),
                "OK": pick.random() < 0.5,
                "KIND": pick.choice(_KINDS),
                "CITY": pick.choice(_CITIES),
                "NOTE": json.dumps({"session": pick.randrange(10**9), "page": number % 97}),
            }
        )
    return made
