"""CREATE, ALTER and DROP of buckets, grants on buckets and on the account, access keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.commands.ddl import execute_ddl
from snowmelt.catalog.commands.statement_context import StatementResult, StatementSession
from snowmelt.catalog.model.privilege_kinds import PUBLIC
from snowmelt.catalog.objects import s3_buckets
from snowmelt.catalog.security import access_control, access_keys
from snowmelt.catalog.sql.ast import (
    AlterBucket,
    CreateBucket,
    DropAccessKey,
    DropBucket,
    GrantOnAccount,
    GrantOnBucket,
)
from snowmelt.catalog.sql.object_name_types import CreateMode
from snowmelt.errors import PrivilegeMissing
from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from snowmelt.catalog.objects.s3_buckets import BucketRecord


@execute_ddl.register(CreateBucket)
def _create_bucket(statement: CreateBucket, session: StatementSession) -> StatementResult:
    if not access_control.has_account_privilege(
        session.connection, {session.role, PUBLIC}, s3_buckets.CREATE_BUCKET_PRIVILEGE
    ):
        raise PrivilegeMissing(
            role=to_display_name(session.role),
            privilege=s3_buckets.CREATE_BUCKET_PRIVILEGE,
            object="the account",
        )
    name = statement.name
    if statement.create_mode is CreateMode.IF_NOT_EXISTS and name in _list_bucket_names(session):
        return StatementResult(message=f"Bucket {name} exists already; nothing was done.")
    s3_buckets.create_bucket(session.connection, name, owner=session.role, now=session.now)
    return StatementResult(message=f"Bucket {name} created.")


@execute_ddl.register(AlterBucket)
def _alter_bucket(statement: AlterBucket, session: StatementSession) -> StatementResult:
    if statement.if_exists and statement.name not in _list_bucket_names(session):
        return StatementResult(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _find_owned_bucket(session, statement.name)
    s3_buckets.set_select_dialect(session.connection, bucket, statement.select_dialect)
    return StatementResult(message=f"Bucket {bucket.name} altered.")


@execute_ddl.register(DropBucket)
def _drop_bucket(statement: DropBucket, session: StatementSession) -> StatementResult:
    if statement.if_exists and statement.name not in _list_bucket_names(session):
        return StatementResult(message=f"Bucket {statement.name} does not exist; nothing was done.")
    bucket = _find_owned_bucket(session, statement.name)
    s3_buckets.drop_bucket(session.connection, bucket, session.now)
    return StatementResult(message=f"Bucket {bucket.name} dropped.")


@execute_ddl.register(GrantOnBucket)
def _change_bucket_grants(statement: GrantOnBucket, session: StatementSession) -> StatementResult:
    bucket = _find_owned_bucket(session, statement.bucket)
    connection, role = session.connection, statement.role
    for privilege in statement.privileges:
        if statement.prefix is None:
            write = (
                access_control.revoke_privilege
                if statement.revoke
                else access_control.grant_privilege
            )
            write(connection, privilege, "BUCKET", bucket.bucket_id, role)
        else:
            narrow = s3_buckets.revoke_on_prefix if statement.revoke else s3_buckets.grant_on_prefix
            narrow(connection, privilege, bucket, statement.prefix.encode(), role)
    done = "revoked from" if statement.revoke else "granted to"
    where = "" if statement.prefix is None else f" prefix {statement.prefix!r}"
    privileges = ", ".join(statement.privileges)
    return StatementResult(
        message=f"{privileges} on bucket {bucket.name}{where} {done} role {to_display_name(role)}."
    )


@execute_ddl.register(GrantOnAccount)
def _grant_on_account(statement: GrantOnAccount, session: StatementSession) -> StatementResult:
    privilege = statement.privilege
    session.require_administrator(f"GRANT {privilege}")
    access_control.grant_or_revoke_account_privilege(
        session.connection, statement.role, privilege, revoke=statement.revoke
    )
    done = "revoked from" if statement.revoke else "granted to"
    return StatementResult(message=f"{privilege} {done} role {to_display_name(statement.role)}.")


@execute_ddl.register(DropAccessKey)
def _drop_access_key(statement: DropAccessKey, session: StatementSession) -> StatementResult:
    if session.user != statement.user:
        session.require_administrator("ALTER USER")
    access_keys.drop_access_key(session.connection, statement.user, statement.access_key_id)
    shown = to_display_name(statement.user)
    return StatementResult(message=f"Access key {statement.access_key_id} of user {shown} dropped.")


def _find_owned_bucket(session: StatementSession, name: str) -> BucketRecord:
    bucket = session.find_bucket(name)
    session.require_privilege("BUCKET", bucket.bucket_id, "OWNERSHIP", bucket.name)
    return bucket


def _list_bucket_names(session: StatementSession) -> set[str]:
    return {bucket.name for bucket in s3_buckets.list_buckets(session.connection)}
