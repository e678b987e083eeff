"""Registry of a service's local and mounted buckets, with the privileges of a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sa

from snowmelt.buckets.bucket import Bucket
from snowmelt.buckets.errors import S3Error
from snowmelt.buckets.local_bucket import LocalBucket
from snowmelt.buckets.mounted_store_bucket import MountedBucket
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.objects import failover_groups, s3_buckets
from snowmelt.catalog.objects.s3_buckets import BucketPrivileges, BucketRecord
from snowmelt.catalog.security import access_control
from snowmelt.clock import Clock
from snowmelt.errors import (
    AlreadyExists,
    BucketNameInvalid,
    ConfigurationError,
    NotEmpty,
    NotFound,
)
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.storage.store_factory import open_store

# Number of a bucket without a record, at a secondary whose primary does not have the mount.
NO_BUCKET_ID = 0


class Mount(NamedTuple):
    """An existing location that a bucket serves."""

    url: str
    store: Store


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """A bucket with the privileges of a user."""

    user: str
    record: BucketRecord
    privileges: BucketPrivileges
    bucket: Bucket

    def require_privilege(self, privilege: str, key: str) -> None:
        """Verify that the user has a privilege on a key, or on all keys with a prefix.

        Raises:
            S3Error: If the privilege is not granted.
        """
        if not self.privileges.allows(privilege, key.encode()):
            raise S3Error("AccessDenied", f"This needs {privilege} on bucket {self.record.name}.")

    def require_any_privilege(self) -> None:
        """Verify that the user has any privilege on the bucket.

        Raises:
            S3Error: If no privilege is granted.
        """
        if self.privileges.is_empty:
            raise S3Error("AccessDenied")


class BucketRegistry:
    """Registry that finds, creates and drops buckets. Each call reads the current privileges."""

    def __init__(
        self,
        database: Database,
        files: LocalStore,
        clock: Clock,
        *,
        mounts: Mapping[str, Mount] | None = None,
    ) -> None:
        self.database = database
        self.files = files
        self.clock = clock
        self._mounts = dict(mounts or {})

    def access_bucket(self, user: str, name: str) -> BucketAccess:
        """Return a bucket with the privileges of a user.

        Raises:
            S3Error: If it does not exist.
        """
        with self.database.reading() as connection:
            record = self._find_bucket(connection, name)
            reach = s3_buckets.bucket_privileges(
                connection, access_control.list_user_roles(connection, user), record
            )
        return BucketAccess(user, record, reach, self._open_bucket(record))

    def access_with_privileges(
        self, user: str, name: str, privileges: BucketPrivileges
    ) -> BucketAccess:
        """Return a bucket with exactly the given privileges.

        Raises:
            S3Error: If it does not exist.
        """
        with self.database.reading() as connection:
            record = self._find_bucket(connection, name)
        return BucketAccess(user, record, privileges, self._open_bucket(record))

    def list_visible(self, user: str) -> list[BucketRecord]:
        """Return the buckets on which a user has a privilege, by name."""
        with self.database.reading() as connection:
            roles = access_control.list_user_roles(connection, user)
            return [
                record
                for record in s3_buckets.list_buckets(connection)
                if self._is_backend_mounted(record)
                and not s3_buckets.bucket_privileges(connection, roles, record).is_empty
            ]

    def create(self, user: str, name: str) -> None:
        """Create a bucket. Its owner is the user's default role, or the only role besides PUBLIC.

        Raises:
            S3Error: If the bucket exists, its name is invalid, or the user lacks the privilege.
        """
        if "_" in name:
            raise S3Error(
                "InvalidBucketName",
                f"Invalid bucket name {name[:80]!r}: S3 creates no bucket with an underscore. Use "
                "CREATE BUCKET in SQL, or another name.",
                BucketName=name,
            )
        try:
            with self.database.writing() as connection:
                roles = access_control.list_user_roles(connection, user)
                if not access_control.has_account_privilege(
                    connection, roles, s3_buckets.CREATE_BUCKET_PRIVILEGE
                ):
                    raise S3Error("AccessDenied", "This needs CREATE BUCKET on the account.")
                owner = _choose_owner(
                    access_control.find_user(connection, user).default_role, roles
                )
                access_control.require_role(connection, owner)
                s3_buckets.create_bucket(connection, name, owner=owner, now=self.clock.now())
        except BucketNameInvalid as error:
            raise S3Error("InvalidBucketName", str(error), BucketName=name) from None
        except AlreadyExists:
            raise self._name_taken_error(user, name) from None

    def drop(self, access: BucketAccess) -> None:
        """Drop an empty bucket.

        Raises:
            S3Error: If the bucket is not empty, is served from a backend, or is not owned by the
                user.
        """
        if not access.privileges.is_owner:
            raise S3Error("AccessDenied", "Only the owner's role may delete a bucket.")
        if access.record.backend is not None:
            raise S3Error(
                "MethodNotAllowed", "This bucket is mounted from a backend. Unmount it instead."
            )
        try:
            with self.database.writing() as connection:
                s3_buckets.drop_bucket(connection, access.record, self.clock.now())
        except NotEmpty as error:
            raise S3Error("BucketNotEmpty", str(error), BucketName=access.record.name) from None
        except NotFound:
            raise S3Error("NoSuchBucket", BucketName=access.record.name) from None

    def register_mounts(self) -> None:
        """Create or correct the records of the mounts, if this site accepts writes."""
        for name, mount in self._mounts.items():
            register_mount(self.database, self.clock, name, mount.url)

    def _find_bucket(self, connection: sa.Connection, name: str) -> BucketRecord:
        try:
            record = s3_buckets.find_bucket(connection, name)
        except NotFound:
            mount = self._mounts.get(name)
            if mount is None:
                raise S3Error("NoSuchBucket", BucketName=name) from None
            record = register_mount(self.database, self.clock, name, mount.url)
        if not self._is_backend_mounted(record):
            raise S3Error("NoSuchBucket", BucketName=name)
        return record

    def _is_backend_mounted(self, record: BucketRecord) -> bool:
        return record.backend is None or record.name in self._mounts

    def _open_bucket(self, record: BucketRecord) -> Bucket:
        if record.backend is not None:
            return MountedBucket(record, self.database, self._mounts[record.name].store)
        return LocalBucket(record, self.database, self.files, self.clock)

    def _name_taken_error(self, user: str, name: str) -> S3Error:
        with self.database.reading() as connection:
            record = s3_buckets.find_bucket(connection, name)
            reach = s3_buckets.bucket_privileges(
                connection, access_control.list_user_roles(connection, user), record
            )
        code = "BucketAlreadyOwnedByYou" if reach.is_owner else "BucketAlreadyExists"
        return S3Error(code, BucketName=name)


def mount_backends(database: Database, clock: Clock, urls: str) -> dict[str, Mount]:
    """Open the locations of `--backend`, and register each as a bucket of ACCOUNTADMIN.

    `urls` has URLs or folders, separated by commas. `name=url` sets the name of the bucket. By
    default, it is the name of the backend's bucket, container or folder.

    Raises:
        ConfigurationError: If a location cannot be opened, or another bucket has the name.
    """
    mounts: dict[str, Mount] = {}
    for text in filter(None, (each.strip() for each in urls.split(","))):
        name, url = _parse_backend(text)
        if name in mounts:
            raise ConfigurationError(
                setting="s3_backend",
                reason=f"bucket {name} is given twice; give each bucket one URL",
            )
        mounts[name] = Mount(url, open_store(url))
        register_mount(database, clock, name, url)
    return mounts


def mount_stage(database: Database, clock: Clock, name: str, stage: Store) -> dict[str, Mount]:
    """Register a bucket of ACCOUNTADMIN for the stage. Return the bucket and its record.

    Raises:
        ConfigurationError: If a bucket with objects has that name.
    """
    register_mount(database, clock, name, stage.url)
    return {name: Mount(stage.url, stage)}


def register_mount(database: Database, clock: Clock, name: str, url: str) -> BucketRecord:
    """Return the record of a bucket that serves an existing location.

    Creates or corrects the record. A secondary has the records of its primary, and writes none: if the
    primary has no such bucket, the result is not stored and has the number NO_BUCKET_ID.

    Raises:
        ConfigurationError: If a bucket with objects has that name.
    """
    with database.reading() as connection:
        record = _find_mount(connection, name, url)
        if record is not None and record.backend == url:
            return record
        if not failover_groups.is_writable(connection):
            return record or BucketRecord(NO_BUCKET_ID, name, ACCOUNTADMIN, url, None, clock.now())
    with database.writing() as connection:
        record = _find_mount(connection, name, url)
        if record is None:
            try:
                return s3_buckets.create_bucket(
                    connection, name, owner=ACCOUNTADMIN, now=clock.now(), backend=url
                )
            except BucketNameInvalid as error:
                raise ConfigurationError(
                    setting="s3_backend", reason=f"{error} Give another: name={url}"
                ) from None
            except AlreadyExists:
                # Another service has created the bucket since.
                record = _find_mount(connection, name, url)
        if record is not None:
            s3_buckets.update_bucket(connection, record, backend=url)
        return s3_buckets.find_bucket(connection, name)


def _find_mount(connection: sa.Connection, name: str, url: str) -> BucketRecord | None:
    try:
        record = s3_buckets.find_bucket(connection, name)
    except NotFound:
        return None
    if record.backend is None:
        raise ConfigurationError(
            setting="s3_backend",
            reason=f"there is a bucket {name} with objects of its own; give another name (x={url}),"
            " or drop that bucket",
        )
    return record


def _parse_backend(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if equals and "/" not in name:
        return name, url
    parts = urlsplit(text)
    return (parts.netloc or parts.path.rstrip("/").rpartition("/")[2]), text


def _choose_owner(default_role: str | None, roles: tuple[str, ...]) -> str:
    if default_role is not None and default_role in roles:
        return default_role
    others = [role for role in roles if role != PUBLIC]
    if len(others) == 1:
        return others[0]
    raise S3Error(
        "AccessDenied",
        "PUBLIC would own the bucket: give the user a default role (ALTER USER).",
    )
