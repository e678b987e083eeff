"""Statements that change buckets, the privileges on them, and access keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import access, access_keys, account, buckets
from snowmelt.catalog.changing import change
from snowmelt.catalog.naming import Existing
from snowmelt.catalog.results import Result
from snowmelt.catalog.statements import (
    AlterBucket,
    CreateBucket,
    DropAccessKey,
    DropBucket,
    GrantOnAccount,
    GrantOnBucket,
)
from snowmelt.errors import PrivilegeMissing
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.buckets import BucketRecord
    from snowmelt.catalog.session import Session


@change.register(CreateBucket)
def _create_bucket(statement: CreateBucket, session: Session) -> Result:
    if not account.may(session.connection, {session.role, access.PUBLIC}, buckets.CREATE_BUCKET):
        raise PrivilegeMissing(
            role=display_name(session.role), privilege=buckets.CREATE_BUCKET, object="the account"
        )
    name = statement.name
    if statement.existing is Existing.KEEP and name in _names(session):
        return Result(message=f"Bucket {name} exists already; nothing was done.")
    buckets.create_bucket(session.connection, name, owner=session.role, now=session.now)
    return Result(message=f"Bucket {name} created.")


@change.register(AlterBucket)
def _alter_bucket(statement: AlterBucket, session: Session) -> Result:
    if statement.if_exists and statement.name not in _names(session):
        return Result(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _owned(session, statement.name)
    buckets.set_select_dialect(session.connection, bucket, statement.select_dialect)
    return Result(message=f"Bucket {bucket.name} altered.")


@change.register(DropBucket)
def _drop_bucket(statement: DropBucket, session: Session) -> Result:
    if statement.if_exists and statement.name not in _names(session):
        return Result(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _owned(session, statement.name)
    buckets.drop_bucket(session.connection, bucket, session.now)
    return Result(message=f"Bucket {bucket.name} dropped.")


@change.register(GrantOnBucket)
def _grant_on_bucket(statement: GrantOnBucket, session: Session) -> Result:
    bucket = _owned(session, statement.bucket)
    connection, role = session.connection, statement.role
    for privilege in statement.privileges:
        if statement.prefix is None:
            write = access.revoke if statement.revoke else access.grant
            write(connection, privilege, "BUCKET", bucket.bucket_id, role)
        else:
            narrow = buckets.revoke_prefix if statement.revoke else buckets.grant_prefix
            narrow(connection, privilege, bucket, statement.prefix.encode(), role)
    done = "revoked from" if statement.revoke else "granted to"
    where = "" if statement.prefix is None else f" prefix {statement.prefix!r}"
    privileges = ", ".join(statement.privileges)
    return Result(
        message=f"{privileges} on bucket {bucket.name}{where} {done} role {display_name(role)}."
    )


@change.register(GrantOnAccount)
def _grant_on_account(statement: GrantOnAccount, session: Session) -> Result:
    privilege = statement.privilege
    session.require_administrator(f"GRANT {privilege}")
    account.allow(session.connection, statement.role, privilege, revoke=statement.revoke)
    done = "revoked from" if statement.revoke else "granted to"
    return Result(message=f"{privilege} {done} role {display_name(statement.role)}.")


@change.register(DropAccessKey)
def _drop_access_key(statement: DropAccessKey, session: Session) -> Result:
    if session.user != statement.user:
        session.require_administrator("ALTER USER")
    access_keys.drop_access_key(session.connection, statement.user, statement.access_key_id)
    shown = display_name(statement.user)
    return Result(message=f"Access key {statement.access_key_id} of user {shown} dropped.")


def _owned(session: Session, name: str) -> BucketRecord:
    bucket = session.find_bucket(name)
    session.require("BUCKET", bucket.bucket_id, "OWNERSHIP", bucket.name)
    return bucket


def _names(session: Session) -> set[str]:
    return {bucket.name for bucket in buckets.buckets_of(session.connection)}
