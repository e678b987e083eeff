"""Buckets of the S3 endpoint, and privileges on buckets and key prefixes.

Privileges on a whole bucket are ordinary grants (`security.access_control`). Privileges on a prefix
are in a separate table. S3 requests cannot specify a role, so a user has the privileges of all
granted roles.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.db.dialect import add_or_delete_row, make_insert, make_record
from snowmelt.catalog.model.records import ACCOUNTADMIN, PRIVILEGES
from snowmelt.catalog.security.access_control import require_role
from snowmelt.errors import AlreadyExists, BucketNameInvalid, NotEmpty, NotFound

_BUCKETS = model.buckets
_GRANTS = model.grants
_PREFIX_GRANTS = model.prefix_grants

CREATE_BUCKET_PRIVILEGE = "CREATE BUCKET"
PREFIX_PRIVILEGES = tuple(each for each in PRIVILEGES["BUCKET"] if each != "OWNERSHIP")

# Every request of the S3 endpoint runs these statements. Building them once halves the cost.
_SELECT_LIVE_BUCKETS = sa.select(*(each for each in _BUCKETS.c if each.name != "dropped_at")).where(
    _BUCKETS.c.dropped_at.is_(None)
)
_SELECT_BUCKET_BY_NAME = _SELECT_LIVE_BUCKETS.where(_BUCKETS.c.name == sa.bindparam("name"))
_SELECT_PRIVILEGES = sa.union_all(
    sa.select(_GRANTS.c.privilege, sa.literal(b"", sa.LargeBinary).label("prefix")).where(
        _GRANTS.c.role.in_(sa.bindparam("roles", expanding=True)),
        _GRANTS.c.kind == "BUCKET",
        _GRANTS.c.object_id == sa.bindparam("bucket_id"),
    ),
    sa.select(_PREFIX_GRANTS.c.privilege, _PREFIX_GRANTS.c.prefix).where(
        _PREFIX_GRANTS.c.role.in_(sa.bindparam("roles", expanding=True)),
        _PREFIX_GRANTS.c.bucket_id == sa.bindparam("bucket_id"),
    ),
)

_NOT_EMPTY_MESSAGES = {
    model.objects: "Bucket {} is not empty: it holds objects. Delete them first.",
    model.uploads: "Bucket {} is not empty: it holds multipart uploads that are not completed. Complete or"
    " abort them first (ListMultipartUploads names them).",
}
# S3's rules for new bucket names, plus the underscore, which other stores and old S3 buckets use.
# Existing buckets with other names stay usable.
_BUCKET_NAME_PATTERN = re.compile(
    r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?)*"
)
_RESERVED_NAME_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_NAME_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket; `backend` is the URL of an existing location, None for objects stored here."""

    bucket_id: int
    name: str
    owner: str
    backend: str | None
    select_dialect: str | None
    created_at: dt.datetime


@dataclass(frozen=True, slots=True)
class PrefixGrant:
    """A privilege of a role on objects with a key prefix."""

    role: str
    bucket_id: int
    prefix: bytes
    privilege: str


@dataclass(frozen=True, slots=True)
class BucketPrivileges:
    """Privileges in one bucket: the key prefixes of each privilege. The prefix b"" covers all keys."""

    is_owner: bool
    prefixes_by_privilege: dict[str, tuple[bytes, ...]]

    def allows(self, privilege: str, key: bytes) -> bool:
        """Return True if the privilege covers this key, or all keys with this prefix."""
        return self.is_owner or any(
            key.startswith(each) for each in self.prefixes_by_privilege.get(privilege, ())
        )

    @property
    def is_empty(self) -> bool:
        """True if there is no privilege."""
        return not self.is_owner and not any(self.prefixes_by_privilege.values())


def create_bucket(
    connection: sa.Connection,
    name: str,
    *,
    owner: str,
    now: dt.datetime,
    backend: str | None = None,
) -> BucketRecord:
    """Create a bucket owned by role `owner`.

    Raises:
        AlreadyExists: If a bucket of that name exists, even if another role owns it.
        BucketNameInvalid: If S3 does not permit the name.
    """
    if (
        not 3 <= len(name) <= 63
        or not _BUCKET_NAME_PATTERN.fullmatch(name)
        or name.startswith(_RESERVED_NAME_PREFIXES)
        or name.endswith(_RESERVED_NAME_SUFFIXES)
        or _is_ipv4_address(name)
    ):
        raise BucketNameInvalid(bucket=name)
    made = connection.execute(
        make_insert(connection, _BUCKETS)
        .values(name=name, owner=owner, backend=backend, created_at=now)
        .on_conflict_do_nothing()
        .returning(_BUCKETS.c.bucket_id)
    )
    if made.first() is None:
        raise AlreadyExists(kind="Bucket", name=name)
    return find_bucket(connection, name)


def find_bucket(connection: sa.Connection, name: str) -> BucketRecord:
    """Return a bucket.

    Raises:
        NotFound: If it does not exist.
    """
    row = connection.execute(_SELECT_BUCKET_BY_NAME, {"name": name}).first()
    if row is None:
        raise NotFound(kind="Bucket", name=name)
    return BucketRecord(*row)


def list_buckets(connection: sa.Connection) -> list[BucketRecord]:
    """Return all buckets, ordered by name."""
    found = [BucketRecord(*row) for row in connection.execute(_SELECT_LIVE_BUCKETS)]
    return sorted(found, key=lambda bucket: bucket.name)


def drop_bucket(connection: sa.Connection, bucket: BucketRecord, now: dt.datetime) -> None:
    """Drop a bucket with its grants.

    Raises:
        NotEmpty: If it has objects or open uploads.
    """
    lock_bucket(connection, bucket.bucket_id, exclusive=True)
    for table, hindrance in _NOT_EMPTY_MESSAGES.items():
        inside = sa.select(table.c.bucket_id).where(table.c.bucket_id == bucket.bucket_id).limit(1)
        if connection.execute(inside).first() is not None:
            raise NotEmpty(hindrance.format(bucket.name))
    connection.execute(
        sa.delete(_PREFIX_GRANTS).where(_PREFIX_GRANTS.c.bucket_id == bucket.bucket_id)
    )
    connection.execute(
        sa.delete(_GRANTS).where(
            _GRANTS.c.kind == "BUCKET", _GRANTS.c.object_id == bucket.bucket_id
        )
    )
    update_bucket(connection, bucket, dropped_at=now)


def lock_bucket(connection: sa.Connection, bucket_id: int, *, exclusive: bool = False) -> None:
    """Prevent the drop of a bucket until this transaction ends.

    Raises:
        NotFound: If it was dropped.
    """
    query = (
        sa.select(_BUCKETS.c.name)
        .where(_BUCKETS.c.bucket_id == bucket_id, _BUCKETS.c.dropped_at.is_(None))
        .with_for_update(read=not exclusive)
    )
    if connection.execute(query).first() is None:
        raise NotFound("The bucket was dropped.", kind="Bucket", name=str(bucket_id))


def update_bucket(connection: sa.Connection, bucket: BucketRecord, **values: object) -> None:
    """Set columns of a bucket."""
    connection.execute(
        sa.update(_BUCKETS).where(_BUCKETS.c.bucket_id == bucket.bucket_id).values(values)
    )


def bucket_privileges(
    connection: sa.Connection, roles: Collection[str], bucket: BucketRecord
) -> BucketPrivileges:
    """Return the combined privileges of these roles in a bucket."""
    if ACCOUNTADMIN in roles or bucket.owner in roles:
        return BucketPrivileges(is_owner=True, prefixes_by_privilege={})
    prefixes: dict[str, tuple[bytes, ...]] = {}
    asked = {"roles": list(roles), "bucket_id": bucket.bucket_id}
    for privilege, prefix in connection.execute(_SELECT_PRIVILEGES, asked):
        prefixes[privilege] = (*prefixes.get(privilege, ()), bytes(prefix))
    return BucketPrivileges(is_owner=False, prefixes_by_privilege=prefixes)


def grant_or_revoke_on_prefix(
    connection: sa.Connection, grant: PrefixGrant, *, revoke: bool = False
) -> None:
    """Grant a privilege on objects with a prefix, or revoke it from exactly this prefix.

    Raises:
        NotFound: If the role or the privilege does not exist.
    """
    require_role(connection, grant.role)
    if grant.privilege not in PREFIX_PRIVILEGES:
        raise NotFound(kind="Privilege on a prefix", name=grant.privilege)
    add_or_delete_row(connection, _PREFIX_GRANTS, asdict(grant), delete=revoke)


def list_prefix_grants(
    connection: sa.Connection, *, role: str | None = None, bucket_id: int | None = None
) -> list[PrefixGrant]:
    """Return the privileges on prefixes that a role has, or that exist in a bucket."""
    query = sa.select(_PREFIX_GRANTS)
    if role is not None:
        query = query.where(_PREFIX_GRANTS.c.role == role)
    if bucket_id is not None:
        query = query.where(_PREFIX_GRANTS.c.bucket_id == bucket_id)
    rows = connection.execute(query)
    found = [make_record(PrefixGrant, row, prefix=bytes(row.prefix)) for row in rows]
    return sorted(found, key=lambda g: (g.bucket_id, g.prefix, g.role, g.privilege))


def _is_ipv4_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
