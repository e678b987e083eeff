"""Buckets, their objects and the keys of those who use them, on every database."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.catalog import KEYRING, World
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects import s3_buckets, s3_objects
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.errors import (
    AlreadyExists,
    BucketNameInvalid,
    ConfigurationError,
    NotEmpty,
    NotFound,
    ObjectChanged,
    ObjectMissing,
    PrivilegeMissing,
    UploadNotFound,
)
from support.interleaving import run_after

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ROW = s3_objects.ObjectRecord(b"a", 3, "e1", NOW, {"content-type": "x/y"}, None, "1/f1")


@pytest.fixture
def bucket(database: Database) -> s3_buckets.BucketRecord:
    with database.writing() as connection:
        access_control.create_role(connection, "R", now=NOW)
        return s3_buckets.create_bucket(connection, "raw", owner="R", now=NOW)


def test_a_secret_opens_with_its_master_key_and_id_alone(database: Database) -> None:
    with database.writing() as connection:
        access_control.create_user(connection, "U", now=NOW)
        one = encryption_keys.create_access_key(connection, KEYRING, "U", now=NOW)
        two = encryption_keys.create_access_key(connection, KEYRING, "U", now=NOW)
        assert encryption_keys.find_access_key(connection, KEYRING, one.access_key_id) == one
        assert one.secret not in repr(one)
        assert one.secret != two.secret
        with pytest.raises(ConfigurationError, match="master key"):
            encryption_keys.find_access_key(
                connection, encryption_keys.KeyRing(b"1" * 32), one.access_key_id
            )
        encryption_keys.drop_access_key(connection, "U", one.access_key_id)
        assert encryption_keys.find_access_key(connection, KEYRING, one.access_key_id) is None
        access_control.drop_user(connection, "U")
        assert encryption_keys.list_access_keys(connection) == []


@pytest.mark.parametrize(
    "name",
    [
        *("ab", "A-b", "-ab", "ab-", "_ab", "a_.b", "a..b", "a.-b", "a-.b", "1.2.3.4", "x" * 64),
        *("ä-b", "", "xn--ab", "ab--x-s3"),
    ],
)
def test_names_that_s3_does_not_know_are_refused(database: Database, name: str) -> None:
    with database.writing() as connection, pytest.raises(BucketNameInvalid):
        s3_buckets.create_bucket(connection, name, owner="PUBLIC", now=NOW)


def test_a_dropped_bucket_leaves_its_name_and_no_grants(
    database: Database, bucket: s3_buckets.BucketRecord
) -> None:
    with database.writing() as connection:
        with pytest.raises(AlreadyExists):
            s3_buckets.create_bucket(connection, "raw", owner="PUBLIC", now=NOW)
        s3_objects.put_object(connection, bucket.bucket_id, ROW)
        with pytest.raises(NotEmpty):
            s3_buckets.drop_bucket(connection, bucket, NOW)
        s3_objects.delete_object(connection, bucket.bucket_id, b"a", now=NOW)
        s3_buckets.drop_bucket(connection, bucket, NOW)
        with pytest.raises(NotFound):
            s3_objects.put_object(connection, bucket.bucket_id, ROW)
        again = s3_buckets.create_bucket(connection, "raw", owner="PUBLIC", now=NOW)
        assert again.bucket_id != bucket.bucket_id


def test_privileges_reach_as_far_as_they_are_granted(
    database: Database, bucket: s3_buckets.BucketRecord
) -> None:
    admin: dict[str, Any] = {"user": None, "role": "R"}
    execute_statement(database, "CREATE ROLE reader")
    execute_statement(database, "GRANT READ ON BUCKET raw PREFIX 'in/' TO ROLE reader", **admin)
    execute_statement(database, "GRANT WRITE ON BUCKET raw TO ROLE reader", **admin)
    with database.reading() as connection:
        reach = s3_buckets.bucket_privileges(connection, {"READER"}, bucket)
    assert reach.allows("READ", b"in/a")
    assert not reach.allows("READ", b"in")
    assert not reach.allows("READ", b"")
    assert reach.allows("WRITE", b"anything")
    with pytest.raises(PrivilegeMissing):
        execute_statement(database, "GRANT READ ON BUCKET raw TO ROLE reader", role="READER")
    shown = execute_statement(database, "SHOW GRANTS ON BUCKET raw")
    assert ("READ", "BUCKET", "raw PREFIX 'in/'", "ROLE", "READER") in shown.rows
    assert ("OWNERSHIP", "BUCKET", "raw", "ROLE", "R") in shown.rows
    execute_statement(database, "REVOKE READ ON BUCKET raw PREFIX 'in/' FROM ROLE reader", **admin)
    execute_statement(database, "REVOKE WRITE ON BUCKET raw FROM ROLE reader", **admin)
    with database.reading() as connection:
        assert s3_buckets.bucket_privileges(connection, {"READER"}, bucket).is_empty
    with pytest.raises(NotFound):
        execute_statement(database, "SHOW GRANTS ON BUCKET raw", role="READER")


def test_roles_may_be_let_to_create_buckets(database: Database) -> None:
    execute_statement(database, "CREATE ROLE maker")
    with pytest.raises(PrivilegeMissing, match="CREATE BUCKET"):
        execute_statement(database, "CREATE BUCKET mine", role="MAKER")
    execute_statement(database, "GRANT CREATE BUCKET ON ACCOUNT TO ROLE maker")
    execute_statement(database, "CREATE BUCKET mine", role="MAKER")
    execute_statement(database, "ALTER BUCKET mine SET SELECT_DIALECT = 'ceph'", role="MAKER")
    (row,) = execute_statement(database, "SHOW BUCKETS", role="MAKER").rows
    assert row[1:] == ("mine", "MAKER", None, "ceph")
    execute_statement(database, "DROP ROLE maker")
    assert execute_statement(database, "SHOW BUCKETS").rows[0][2] == "ACCOUNTADMIN"
    execute_statement(database, "DROP BUCKET mine")
    assert execute_statement(database, "SHOW BUCKETS").rows == ()


def test_a_replaced_object_leaves_its_file_to_be_deleted(
    database: Database, bucket: s3_buckets.BucketRecord
) -> None:
    with database.writing() as connection:
        s3_objects.put_object(connection, bucket.bucket_id, ROW)
        newer = replace(ROW, etag="e2", file="1/f2", size=9)
        s3_objects.put_object(connection, bucket.bucket_id, newer)
        assert s3_objects.find_object(connection, bucket.bucket_id, b"a") == newer
        assert s3_objects.list_dropped_files(connection, 9) == ["1/f1"]
        assert s3_objects.find_unreferenced_files(connection, ["1/f1", "1/f2", "1/f3"]) == ["1/f3"]
        s3_objects.delete_file_records(connection, ["1/f1"])
        assert s3_objects.list_dropped_files(connection, 9) == []


def test_conditions_are_decided_where_the_row_is(
    database: Database, bucket: s3_buckets.BucketRecord
) -> None:
    absent, mine = (
        s3_objects.WritePrecondition(must_not_exist=True),
        s3_objects.WritePrecondition(etag="e1"),
    )
    with database.writing() as connection:
        put = s3_objects.put_object
        with pytest.raises(ObjectMissing):
            put(connection, bucket.bucket_id, ROW, precondition=mine)
        put(connection, bucket.bucket_id, ROW, precondition=absent)
        with pytest.raises(ObjectChanged):
            put(connection, bucket.bucket_id, replace(ROW, file="1/x"), precondition=absent)
        put(
            connection,
            bucket.bucket_id,
            replace(ROW, etag="e2", file="1/y"),
            precondition=mine,
        )
        with pytest.raises(ObjectChanged):
            s3_objects.delete_object(connection, bucket.bucket_id, b"a", now=NOW, precondition=mine)


@given(keys=st.sets(st.binary(min_size=1, max_size=6), max_size=12), data=st.data())
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_keys_are_in_the_order_of_their_bytes(
    database: Database, keys: set[Any], data: st.DataObject
) -> None:
    start = data.draw(st.binary(max_size=3))
    with database.writing() as connection:
        bucket_id = s3_buckets.create_bucket(
            connection, f"b{NOW.timestamp():.0f}", owner="PUBLIC", now=NOW
        ).bucket_id
        for at, key in enumerate(keys):
            s3_objects.put_object(connection, bucket_id, replace(ROW, key=key, file=f"{at}"))
        end = s3_objects.prefix_end(start)
        found = s3_objects.list_objects(
            connection, bucket_id, start, inclusive=True, end_key=end, limit=5
        )
        connection.rollback()
    assert [row.key for row in found] == sorted(k for k in keys if k.startswith(start))[:5]


def test_parts_replace_each_other_until_the_upload_ends(
    database: Database, bucket: s3_buckets.BucketRecord
) -> None:
    upload = s3_objects.UploadRecord(
        s3_objects.new_upload_id(NOW), bucket.bucket_id, b"k", "U", NOW, {"a": "b"}, None
    )
    part = s3_objects.PartRecord(2, 5, "e", NOW, None, "1/p1")
    with database.writing() as connection:
        s3_objects.create_upload(connection, upload)
        with pytest.raises(NotEmpty):
            s3_buckets.drop_bucket(connection, bucket, NOW)
        s3_objects.put_part(connection, upload, part)
        s3_objects.put_part(connection, upload, replace(part, number=1, file="1/p2"))
        s3_objects.put_part(connection, upload, replace(part, etag="f", file="1/p3"))
        found = s3_objects.find_upload(connection, bucket.bucket_id, b"k", upload.upload_id)
        assert found == upload
        assert [(each.number, each.file) for each in s3_objects.list_parts(connection, found)] == [
            (1, "1/p2"),
            (2, "1/p3"),
        ]
        assert s3_objects.delete_upload(connection, upload, NOW) == ["1/p2", "1/p3"]
        assert set(s3_objects.list_dropped_files(connection, 9)) == {"1/p1", "1/p2", "1/p3"}
        with pytest.raises(UploadNotFound):
            s3_objects.put_part(connection, upload, part)
        with pytest.raises(UploadNotFound):
            s3_objects.find_upload(connection, bucket.bucket_id, b"other", upload.upload_id)


@pytest.mark.postgres
def test_an_object_that_is_deleted_while_it_is_replaced_exists_afterwards(
    postgres_world: World,
) -> None:
    world = postgres_world
    first = s3_objects.ObjectRecord(b"a", 3, "e1", world.now, {}, None, "1/f1")
    second = replace(first, file="1/f2")
    with world.database.writing() as connection:
        bucket = s3_buckets.create_bucket(connection, "raw", owner="WRITER", now=world.now)
        s3_objects.put_object(connection, bucket.bucket_id, first)

    def delete() -> None:
        with world.database.writing() as other:
            s3_objects.delete_object(other, bucket.bucket_id, b"a", now=world.now)

    with world.database.writing() as connection:
        run_after(connection, "INSERT INTO objects", delete)
        s3_objects.put_object(connection, bucket.bucket_id, second)
    with world.database.reading() as connection:
        assert s3_objects.find_object(connection, bucket.bucket_id, b"a") == second
