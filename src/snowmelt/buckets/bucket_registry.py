"""All buckets of a service: those of its own, and those in front of other places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from snowmelt.buckets.errors import S3Refusal
from snowmelt.buckets.local_bucket import IndexedBucket
from snowmelt.buckets.mounted_bucket import MountedBucket
from snowmelt.catalog.model.privileges import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.objects import s3_buckets
from snowmelt.catalog.security import access_control
from snowmelt.errors import (
    AlreadyExists,
    BucketNameInvalid,
    ConfigurationError,
    NotEmpty,
    NotFound,
)
from snowmelt.storage.store_factory import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from snowmelt.buckets.bucket import Bucket
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.objects.s3_buckets import BucketRecord, Reach
    from snowmelt.clock import Clock
    from snowmelt.storage.local_store import LocalStore
    from snowmelt.storage.store import Store


@dataclass(frozen=True, slots=True)
class Visit:
    """A user in a bucket, and what is allowed there."""

    user: str
    record: BucketRecord
    reach: Reach
    bucket: Bucket

    def require(self, privilege: str, key: str) -> None:
        """Let pass whoever has a privilege on this key, or on all keys that begin with it.

        Raises:
            S3Refusal: It was not granted.
        """
        if not self.reach.allows(privilege, key.encode()):
            raise S3Refusal("AccessDenied", f"This needs {privilege} on bucket {self.record.name}.")

    def require_any(self) -> None:
        """Let pass whoever may do anything here.

        Raises:
            S3Refusal: Nothing was granted.
        """
        if self.reach.is_empty:
            raise S3Refusal("AccessDenied")


class Directory:
    """Finds, makes and drops buckets; every call reads privileges anew."""

    def __init__(
        self,
        database: Database,
        files: LocalStore,
        clock: Clock,
        *,
        mounts: Mapping[str, Store] | None = None,
    ) -> None:
        self.database = database
        self.files = files
        self.clock = clock
        self._mounts = dict(mounts or {})

    def visit(self, user: str, name: str) -> Visit:
        """Return a bucket with what a user may do in it.

        Raises:
            S3Refusal: There is no such bucket.
        """
        with self.database.reading() as connection:
            record = self._find(connection, name)
            reach = s3_buckets.reach(connection, access_control.roles_of(connection, user), record)
        return Visit(user, record, reach, self._bucket(record))

    def confined(self, user: str, name: str, reach: Reach) -> Visit:
        """Return a bucket for somebody who may do there what `reach` says, and no more.

        Raises:
            S3Refusal: There is no such bucket.
        """
        with self.database.reading() as connection:
            record = self._find(connection, name)
        return Visit(user, record, reach, self._bucket(record))

    def visible(self, user: str) -> list[BucketRecord]:
        """Return the buckets in which a user may do anything, by name."""
        with self.database.reading() as connection:
            roles = access_control.roles_of(connection, user)
            return [
                record
                for record in s3_buckets.buckets_of(connection)
                if self._is_there(record)
                and not s3_buckets.reach(connection, roles, record).is_empty
            ]

    def create(self, user: str, name: str) -> None:
        """Create a bucket for the user's default role, or for the only other role than PUBLIC.

        Raises:
            S3Refusal: There is one, its name cannot be, or the user may not.
        """
        if "_" in name:
            raise S3Refusal(
                "InvalidBucketName",
                f"Invalid bucket name {name[:80]!r}: S3 creates no bucket with an underscore. Use "
                "CREATE BUCKET in SQL, or another name.",
                BucketName=name,
            )
        try:
            with self.database.writing() as connection:
                roles = access_control.roles_of(connection, user)
                if not access_control.may(connection, roles, s3_buckets.CREATE_BUCKET):
                    raise S3Refusal("AccessDenied", "This needs CREATE BUCKET on the account.")
                owner = _owner(access_control.user_by_name(connection, user).default_role, roles)
                s3_buckets.create_bucket(connection, name, owner=owner, now=self.clock.now())
        except BucketNameInvalid as error:
            raise S3Refusal("InvalidBucketName", str(error), BucketName=name) from None
        except AlreadyExists:
            raise self._taken(user, name) from None

    def drop(self, visit: Visit) -> None:
        """Drop an empty bucket.

        Raises:
            S3Refusal: It is not empty, is no bucket of our own, or the user does not own it.
        """
        if not visit.reach.owns:
            raise S3Refusal("AccessDenied", "Only the owner's role may delete a bucket.")
        if visit.record.backend is not None:
            raise S3Refusal(
                "MethodNotAllowed", "This bucket stands in front of another place; unmount it."
            )
        try:
            with self.database.writing() as connection:
                s3_buckets.drop_bucket(connection, visit.record, self.clock.now())
        except NotEmpty as error:
            raise S3Refusal("BucketNotEmpty", str(error), BucketName=visit.record.name) from None
        except NotFound:
            raise S3Refusal("NoSuchBucket", BucketName=visit.record.name) from None

    def _find(self, connection: sa.Connection, name: str) -> BucketRecord:
        try:
            record = s3_buckets.find_bucket(connection, name)
        except NotFound:
            raise S3Refusal("NoSuchBucket", BucketName=name) from None
        if not self._is_there(record):
            raise S3Refusal("NoSuchBucket", BucketName=name)
        return record

    def _is_there(self, record: BucketRecord) -> bool:
        return record.backend is None or record.name in self._mounts

    def _bucket(self, record: BucketRecord) -> Bucket:
        if record.backend is not None:
            return MountedBucket(record, self.database, self._mounts[record.name])
        return IndexedBucket(record, self.database, self.files, self.clock)

    def _taken(self, user: str, name: str) -> S3Refusal:
        with self.database.reading() as connection:
            record = s3_buckets.find_bucket(connection, name)
            reach = s3_buckets.reach(connection, access_control.roles_of(connection, user), record)
        code = "BucketAlreadyOwnedByYou" if reach.owns else "BucketAlreadyExists"
        return S3Refusal(code, BucketName=name)


def mount(database: Database, clock: Clock, urls: str) -> dict[str, Store]:
    """Open the places of `--backend`, and note each as a bucket of ACCOUNTADMIN's.

    Args:
        database: The catalog.
        clock: Dates new buckets.
        urls: URLs or folders with commas between; `name=url` gives the bucket another name than
            that of the bucket, container or folder it stands for.

    Raises:
        ConfigurationError: A place cannot be opened, or its name is another bucket's.
    """
    mounts: dict[str, Store] = {}
    for text in filter(None, (each.strip() for each in urls.split(","))):
        name, url = _named(text)
        if name in mounts:
            raise ConfigurationError(setting="s3_backend", reason=f"{name} is there twice")
        mounts[name] = open_store(url)
        with database.writing() as connection:
            _note(connection, name, url, clock)
    return mounts


def mount_stage(database: Database, clock: Clock, name: str, stage: Store) -> dict[str, Store]:
    """Note a bucket of ACCOUNTADMIN's that stands in front of the stage, and return both.

    Raises:
        ConfigurationError: There is a bucket of that name with objects of its own.
    """
    with database.writing() as connection:
        _note(connection, name, stage.url, clock)
    return {name: stage}


def _note(connection: sa.Connection, name: str, url: str, clock: Clock) -> None:
    try:
        record = s3_buckets.find_bucket(connection, name)
    except NotFound:
        try:
            s3_buckets.create_bucket(
                connection, name, owner=ACCOUNTADMIN, now=clock.now(), backend=url
            )
        except BucketNameInvalid as error:
            raise ConfigurationError(
                setting="s3_backend", reason=f"{error} Give another: name={url}"
            ) from None
        return
    if record.backend is None:
        raise ConfigurationError(
            setting="s3_backend",
            reason=f"there is a bucket {name} with objects of its own; give another name (x={url}),"
            " or drop that bucket",
        )
    s3_buckets.set_backend(connection, record, url)


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if equals and "/" not in name:
        return name, url
    parts = urlsplit(text)
    return (parts.netloc or parts.path.rstrip("/").rpartition("/")[2]), text


def _owner(default_role: str | None, roles: tuple[str, ...]) -> str:
    if default_role is not None and default_role in roles:
        return default_role
    others = [role for role in roles if role != PUBLIC]
    if len(others) == 1:
        return others[0]
    raise S3Refusal(
        "AccessDenied",
        "The bucket would belong to everybody: give the user a default role (ALTER USER).",
    )
