"""Verification reads everything, and names what differs."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from fixtures.backups import BackedUpSite
from snowmelt.backup.manifests import BackupDamaged, BackupRejected, decode_manifest
from snowmelt.backup.restoration import RestoreTarget
from snowmelt.backup.verification import find_problems, verify_point
from snowmelt.catalog import model
from snowmelt.storage.local_store import LocalStore

pytestmark = pytest.mark.slow


def test_a_point_of_every_form_has_no_problems(site: BackedUpSite) -> None:
    site.write(10)
    site.house.migrate()
    site.write(5)
    result = verify_point(site.destination, site.back_up(), site.private_key, site.clock)
    assert (result.problems, result.rows, result.tables, result.channels) == ((), 15, 1, 1)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (model.channels.update().values(offset_token="3"), "is at token '3' instead of '14'"),
        (model.channels.delete(), "is at token None instead of '14'"),
        (model.chunks.delete().where(model.chunks.c.seq == 2), "lacks chunk 2"),
        (model.chunks.update().values(rows=4), "instead of 4"),
        (model.tables.update().values(migrated_seq=2), "0 rows in chunks instead of 5"),
        (model.table_keys.update().values(wrapped_key=bytes(60)), "Cannot read table"),
    ],
)
def test_a_difference_is_named(site: BackedUpSite, statement: object, problem: str) -> None:
    site.write(10)
    site.house.migrate()
    site.write(5)
    point = site.back_up()
    with contextlib.closing(site.restore(point)) as house:
        target = RestoreTarget(
            "",
            house.stage,
            house.warehouse,
            LocalStore(house.folder / "objects"),
            house.folder / "keys",
            site.clock,
        )
        house.is_damaged = True
        with house.database.writing() as connection:
            connection.execute(statement)  # type: ignore[call-overload]
        found = list(find_problems(house.database, house.keyring, target, point))
    assert any(problem in each for each in found), found


def test_a_changed_manifest_and_a_newer_format_are_rejected(site: BackedUpSite) -> None:
    site.write(10)
    point = site.back_up()
    path = f"points/{point.point_id}.json"
    content = site.destination.store.get(path)
    changed = content.replace(b'"DEMO.PUBLIC.NUMBERS"', b'"DEMO.PUBLIC.LETTERS"')
    assert changed != content
    with pytest.raises(BackupDamaged, match="checksum"):
        decode_manifest(changed, path)
    with pytest.raises(BackupDamaged, match="cannot parse"):
        decode_manifest(content[:-5], path)
    newer = msgspec.json.encode({**msgspec.json.decode(content), "format": 2})
    with pytest.raises(BackupRejected, match="has format 2"):
        decode_manifest(newer, path)
