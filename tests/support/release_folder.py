"""Writes the data folder of a release, which tests of later versions open.

`python tests/support/release_folder.py 0.2.0` writes `tests/data/releases/0.2.0.tar.gz` with the installed version.
Its rows are not migrated, because native files contain absolute paths.
"""

from __future__ import annotations

import datetime as dt
import sys
import tarfile
import tempfile
from decimal import Decimal
from pathlib import Path

import snowmelt

RELEASES = Path(__file__).parents[1] / "data" / "releases"
TABLE = "shop.public.orders"
STATEMENTS = (
    "CREATE DATABASE shop COMMENT = 'kept'",
    (
        "CREATE TABLE shop.public.orders (id NUMBER(9,0) NOT NULL, amount NUMBER(12,2), what VARCHAR,"
        " at TIMESTAMP_NTZ(6), extra VARIANT)"
    ),
    "ALTER TABLE shop.public.orders ADD COLUMN note VARCHAR",
    "CREATE ROLE reading",
    "CREATE USER ann DEFAULT_ROLE = reading",
    "GRANT ROLE reading TO USER ann",
    "GRANT USAGE ON DATABASE shop TO ROLE reading",
    "GRANT SELECT ON TABLE shop.public.orders TO ROLE reading",
    "CREATE SCHEMA shop.gone",
    "DROP SCHEMA shop.gone",
    "CREATE BUCKET exports",
)
ROWS = [
    {
        "id": number,
        "amount": Decimal(number) / 4,
        "what": f"order {number} ❄",
        "at": dt.datetime(2026, 1, 1) + dt.timedelta(hours=number),
        "extra": {"n": number},
        "note": None if number % 2 else "even",
    }
    for number in range(20)
]


def write(version: str) -> Path:
    """Write the archive of a release, with two channels and rows in three chunks."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        with snowmelt.embedded(data_dir) as client:
            for statement in STATEMENTS:
                client.service.sql(statement)
            for name, rows in (("a", ROWS[:8]), ("b", ROWS[8:12]), ("a", ROWS[12:])):
                channel = client.open_channel(name, table=TABLE)
                channel.insert_rows(rows, offset_token=str(rows[-1]["id"]))
                channel.flush()
        path = RELEASES / f"{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(data_dir, "data", filter=_without_owner)
    return path


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    print(write(sys.argv[1]))
