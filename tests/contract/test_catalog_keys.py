from __future__ import annotations

import pytest

from fixtures.catalog import KEYRING, NAME, START, World
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
from snowmelt.catalog.streaming import registration
from snowmelt.errors import ConfigurationError
from snowmelt.schema.types import TableName


def _key(
    world: World, user: str = "LOADER", name: TableName = NAME, ring: KeyRing = KEYRING
) -> DataKey:
    with world.database.writing() as connection:
        return ring.get_or_create_data_key(connection, tables.find_table(connection, name), user)


def test_a_user_keeps_the_same_key_for_a_table(world: World) -> None:
    key = _key(world)
    assert key == _key(world)
    assert len(key.key) == 32
    assert key.key.hex() not in repr(key)


def test_keys_differ_by_user_by_table_and_by_incarnation(world: World) -> None:
    world.create_table(TableName("DB", "PUBLIC", "U"))
    found = [_key(world), _key(world, "OTHER"), _key(world, name=TableName("DB", "PUBLIC", "U"))]
    world.create_table(replace=True)
    found.append(_key(world))
    assert len({key.key for key in found}) == 4
    assert len({key.key_id for key in found}) == 4


def test_keys_are_found_by_their_ids(world: World) -> None:
    mine, other = _key(world), _key(world, "OTHER")
    with world.database.reading() as connection:
        keys = KEYRING.find_data_keys(connection, [mine.key_id, other.key_id, 999, mine.key_id])
        assert keys == {mine.key_id: mine.key, other.key_id: other.key}
        table_id = tables.find_table(connection, NAME).table_id
        assert KEYRING.find_key_scope(connection, mine.key_id) == (table_id, "LOADER")
        assert KEYRING.find_key_scope(connection, 999) is None


def test_a_key_id_is_never_given_again(world: World) -> None:
    first = _key(world).key_id
    with world.database.writing() as connection:
        table = tables.drop_table(connection, NAME, world.now)
        tables.delete_table_record(connection, table.table_id)
    world.create_table()
    assert _key(world).key_id > first


def test_another_master_key_opens_nothing(world: World) -> None:
    _key(world)
    with pytest.raises(ConfigurationError, match="does not decrypt"):
        _key(world, ring=KeyRing(b"x" * 32))


def test_a_prefix_is_issued_once_and_belongs_to_a_user(database: Database) -> None:
    with database.writing() as connection:
        prefixes = {registration.issue_client_prefix(connection, "U", START) for _ in range(50)}
        assert len(prefixes) == 50
        assert all(len(prefix) == 16 and "_" not in prefix for prefix in prefixes)
        assert {registration.find_prefix_owner(connection, prefix) for prefix in prefixes} == {"U"}
        assert registration.find_prefix_owner(connection, "unheard") is None


def test_the_first_sighting_of_a_blob_counts(world: World) -> None:
    blob = registration.StagedBlob("p", "2026/1/1/0/0/a_p_1_0.bdec")
    with world.database.writing() as connection:
        registration.record_blob_sightings(connection, [blob, blob], world.now)
        registration.record_blob_sightings(connection, [], world.now)
        world.clock.advance(100)
        registration.record_blob_sightings(connection, [blob], world.now)
        seen = [
            registration.tombstone_unregistered_blobs(connection, seen_before=START, now=world.now)
        ]
        seen.append(
            registration.tombstone_unregistered_blobs(
                connection, seen_before=world.now, now=world.now
            )
        )
    assert seen == [[], [blob]]
