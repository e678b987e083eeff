"""Failover and replication groups: CREATE, ALTER, DROP and SHOW.

The grammar is Snowflake's. A group always contains the whole installation and replicates
continuously, so clauses that select objects or set a schedule are rejected. The additional clauses
`SITE`, `ADDRESSES`, `URL`, `USER`, `PRIVATE_KEY`, `CA_FILE` and `TOKENS` configure connections
between installations, which Snowflake configures itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from snowmelt.catalog.model.records import FAILOVER, MONITOR, PUBLIC
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import (
    FailoverGroup,
    GroupSettings,
    SiteRole,
    TokenMode,
)
from snowmelt.catalog.objects.namespaces import list_databases
from snowmelt.catalog.security.access_control import has_account_privilege
from snowmelt.catalog.sql.cursor import (
    Clause,
    ClauseReader,
    CreateMode,
    NameLevel,
    TokenCursor,
    choice_parser,
    identifier_parser,
    is_next_string,
    string_list_parser,
    text_parser,
)
from snowmelt.catalog.statements.statement_context import (
    Listing,
    ShowObjects,
    ShowRow,
    Statement,
    StatementKind,
    StatementResult,
    StatementSession,
    creation_result,
    skip_if_exists,
    skip_if_missing,
)
from snowmelt.errors import PrivilegeMissing, UserError
from snowmelt.schema.types import to_display_name

_LABEL = "a failover group"
_KEY_HINT = "PRIVATE_KEY must be a reference to a file, such as 'file:/etc/snowmelt/replica.pem'"
_FILE_PREFIX = "file:"
# Settings that followers get from the primary.
_SHARED_SETTINGS = frozenset({"allowed_sites", "tokens"})
# Kinds of objects that every group contains. Other kinds of Snowflake objects are rejected.
_REQUIRED_TYPES = frozenset({"DATABASES", "ROLES", "USERS"})
_OBJECT_TYPES = frozenset({*_REQUIRED_TYPES, "INTEGRATIONS"})


class CreateGroup(Statement):
    """CREATE … GROUP at the primary, or with AS REPLICA OF (`url`) at a site that follows."""

    name: str
    kind: str
    create_mode: CreateMode
    site: str
    settings: GroupSettings
    databases: tuple[str, ...] = ()
    url: str | None = None
    is_site_local = True

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator(f"CREATE {self.kind} GROUP")
        label = _label(self.kind, self.name)
        failover_groups.lock_creation(session.connection)
        skip_if_exists(label, self.create_mode, exists=_exists(self.name, session))
        missing = {each.name for each in list_databases(session.connection)} - set(self.databases)
        if self.databases and missing:
            names = ", ".join(sorted(map(to_display_name, missing)))
            raise UserError(
                f"ALLOWED_DATABASES lacks {names}. A group contains all databases of an installation: name "
                "all of them, or omit ALLOWED_DATABASES."
            )
        failover_groups.create_group(
            session.connection,
            self.name,
            self.kind,
            self.settings,
            site=self.site,
            owner=session.role,
            now=session.now,
            primary_url=self.url,
        )
        if self.url is None:
            return creation_result(label, replaced=False)
        return StatementResult(
            message=f"{label} follows {self.url}. SHOW FAILOVER GROUPS shows when it has the first state."
        )


class AlterGroup(Statement):
    """ALTER … GROUP: the action and the values of its clauses."""

    name: str
    action: str
    values: Mapping[str, Any]
    if_exists: bool
    is_site_local = True

    def execute(self, session: StatementSession) -> StatementResult:
        exists = _exists(self.name, session)
        skip_if_missing(_label("FAILOVER", self.name), self.if_exists, exists=exists)
        if self.action in {"PRIMARY", "PLANNED", "FORCE", "REFRESH", "SUSPEND", "RESUME"}:
            if not session.is_administrator:
                session.require_account_privilege(FAILOVER)
        else:
            session.require_administrator("ALTER FAILOVER GROUP")
        group = failover_groups.lock_group(session.connection, self.name)
        return StatementResult(message=_ACTIONS[self.action](self, session, group))


class DropGroup(Statement):
    """DROP … GROUP: the site leaves the group and keeps its state."""

    name: str
    if_exists: bool
    is_site_local = True

    def execute(self, session: StatementSession) -> StatementResult:
        session.require_administrator("DROP FAILOVER GROUP")
        exists = _exists(self.name, session)
        skip_if_missing(_label("FAILOVER", self.name), self.if_exists, exists=exists)
        group = failover_groups.lock_group(session.connection, self.name)
        failover_groups.drop_group(session.connection)
        return StatementResult(message=f"{_label(group.kind, self.name)} dropped.")


def _promote(statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    if group.is_primary:
        return _describe_primary(group)
    is_forced = statement.action == "FORCE"
    epoch = failover_groups.promote(session.connection, force=is_forced, now=session.now)
    return (
        f"Site {group.site} is the primary of group {to_display_name(group.name)}, epoch {epoch}."
    )


def _describe_primary(group: FailoverGroup) -> str:
    """Return the message of a promotion that is repeated, for example after a lost response."""
    return (
        f"Site {group.site} is already the primary of group {to_display_name(group.name)}, epoch "
        f"{group.epoch}."
    )


def _request_switch(_statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    if group.is_primary:
        return _describe_primary(group)
    if group.kind != "FAILOVER" or group.role is not SiteRole.SECONDARY:
        raise failover_groups.GroupConflict(
            reason="PRIMARY PLANNED must run at a secondary of a failover group. This site is the "
            f"{group.role} of a {group.kind.lower()} group"
        )
    failover_groups.update_group(session.connection, switch_requested=True, suspended=False)
    return (
        "The primary rejects writes and hands over its role when this site has all rows. SHOW FAILOVER "
        "GROUPS shows when this site is the primary."
    )


def _refresh(_statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    del session
    return f"Group {to_display_name(group.name)} replicates continuously. REFRESH has no effect."


def _suspend(statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    if group.role in {SiteRole.PRIMARY, SiteRole.CLOSING}:
        return (
            f"Site {group.site} is the primary of group {to_display_name(group.name)} and follows no "
            f"site. {statement.action} has an effect only at a secondary."
        )
    is_suspended = statement.action == "SUSPEND"
    failover_groups.update_group(session.connection, suspended=is_suspended)
    done = "suspended" if is_suspended else "resumed"
    return f"Group {to_display_name(group.name)} {done}."


def _set(statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    values = dict(statement.values)
    url = values.pop("url", None)
    if url is not None:
        failover_groups.update_group(session.connection, primary_url=url)
    return _change_settings(session, group, **values)


def _allow(statement: AlterGroup, session: StatementSession, group: FailoverGroup) -> str:
    named = set(statement.values["sites"])
    sites = set(group.settings.allowed_sites)
    sites = sites | named if statement.action == "ADD" else sites - named
    return _change_settings(session, group, allowed_sites=tuple(sorted(sites)))


def _change_settings(session: StatementSession, group: FailoverGroup, **values: Any) -> str:
    if not values.keys().isdisjoint(_SHARED_SETTINGS) and group.role not in {
        SiteRole.PRIMARY,
        SiteRole.CLOSING,
    }:
        # The next state of the primary would replace them.
        raise failover_groups.GroupConflict(
            reason="ALLOWED_ACCOUNTS and TOKENS must be changed at the primary. This site is the "
            f"{group.role} of group {to_display_name(group.name)}"
        )
    settings = msgspec.structs.replace(group.settings, **values)
    failover_groups.update_settings(session.connection, group, settings)
    return f"Group {to_display_name(group.name)} altered."


_ACTIONS: dict[str, Callable[[AlterGroup, StatementSession, FailoverGroup], str]] = {
    "PRIMARY": _promote,
    "FORCE": _promote,
    "PLANNED": _request_switch,
    "REFRESH": _refresh,
    "SUSPEND": _suspend,
    "RESUME": _suspend,
    "SET": _set,
    "ADD": _allow,
    "REMOVE": _allow,
}


def _exists(name: str, session: StatementSession) -> bool:
    group = failover_groups.find_group(session.connection)
    return group is not None and group.name == name


def _label(kind: str, name: str) -> str:
    return f"{kind.capitalize()} group {to_display_name(name)}"


# Grammar.


def _parse_key_file(cursor: TokenCursor) -> str:
    at = cursor.current
    # The message must not contain the literal, which may be the key itself.
    if not is_next_string(cursor) or not at.text.startswith(_FILE_PREFIX):
        raise cursor.make_error(_KEY_HINT, at)
    return cursor.parse_string("a file").removeprefix(_FILE_PREFIX)


def _parse_names(label: str, cursor: TokenCursor) -> tuple[str, ...]:
    """Parse names with commas between them; a name before `=` begins the next clause."""
    names = [cursor.parse_identifier(label)]
    while cursor.accept(","):
        names.append(cursor.parse_identifier(label))
    return tuple(names)


def _parse_object_types(cursor: TokenCursor) -> tuple[str, ...]:
    first = cursor.current
    types: list[str] = []
    while not types or cursor.accept(","):
        at = cursor.current
        word = cursor.parse_identifier("a kind of objects")
        if word not in _OBJECT_TYPES:
            raise cursor.make_error(
                f"{at.source_text} is not supported: OBJECT_TYPES are DATABASES, ROLES, USERS and "
                "INTEGRATIONS",
                at,
            )
        types.append(word)
    missing = sorted(_REQUIRED_TYPES - set(types))
    if missing:
        raise cursor.make_error(
            f"OBJECT_TYPES lacks {', '.join(missing)}. A group contains the whole installation: name "
            "them, or omit OBJECT_TYPES",
            first,
        )
    return tuple(types)


def _parse_schedule(cursor: TokenCursor) -> None:
    at = cursor.current
    cursor.parse_string("a schedule")
    raise cursor.make_error(
        "REPLICATION_SCHEDULE is not supported: a group replicates continuously. Omit it", at
    )


_SITE_CLAUSES = {
    "SITE": Clause(identifier_parser("a site")),
    "ADDRESSES": Clause(string_list_parser("a URL"), ()),
    "USER": Clause(text_parser("a user")),
    "PRIVATE_KEY": Clause(_parse_key_file),
    "CA_FILE": Clause(text_parser("a path")),
    "COMMENT": Clause(text_parser("a comment")),
}
_PRIMARY_CLAUSES = {
    "OBJECT_TYPES": Clause(_parse_object_types, field="object_types"),
    "ALLOWED_DATABASES": Clause(partial(_parse_names, "a database"), (), field="databases"),
    "ALLOWED_ACCOUNTS": Clause(
        partial(_parse_names, "a site"), is_required=True, field="allowed_sites"
    ),
    "REPLICATION_SCHEDULE": Clause(_parse_schedule),
    "TOKENS": Clause(choice_parser(TokenMode, "TOKENS"), TokenMode.REPLICATED, field="tokens"),
    **_SITE_CLAUSES,
}
_REPLICA_CLAUSES = {"URL": Clause(text_parser("a URL"), is_required=True), **_SITE_CLAUSES}
_SET_CLAUSES = {
    "URL": Clause(text_parser("a URL")),
    **{
        word: clause
        for word, clause in _PRIMARY_CLAUSES.items()
        if word not in {"OBJECT_TYPES", "ALLOWED_DATABASES", "SITE"}
    },
}


def _parse_create(kind: str, cursor: TokenCursor, mode: CreateMode) -> CreateGroup:
    name = cursor.parse_identifier(_LABEL)
    is_replica = cursor.accept("AS", "REPLICA", "OF")
    at = cursor.current
    if is_replica:
        source = cursor.parse_name("a group, with its site", 2)
        if source.parts[-1] != name:
            raise cursor.make_error(
                f"A replica has the name of its group: write {to_display_name(source.parts[-1])}",
                at,
            )
    reader = ClauseReader(
        _REPLICA_CLAUSES if is_replica else _PRIMARY_CLAUSES,
        "a replica" if is_replica else _LABEL,
    )
    reader.parse_all(cursor)
    cursor.expect_end("the clauses")
    values = reader.field_values()
    values.pop("object_types", None)
    url, databases = values.pop("url", None), values.pop("databases", ())
    site = values.pop("site", None if is_replica else "PRIMARY")
    if site is None:
        raise cursor.make_error(
            "SITE is missing. Set it to the name of this site in ALLOWED_ACCOUNTS of the group", at
        )
    return CreateGroup(name, kind, mode, site, GroupSettings(**values), databases, url)


def _parse_alter(cursor: TokenCursor, if_exists: bool) -> AlterGroup:
    name = cursor.parse_identifier(_LABEL)
    action = cursor.expect_one_of(
        "PRIMARY", "REFRESH", "SUSPEND", "RESUME", "SET", "UNSET", "ADD", "REMOVE"
    )
    values: dict[str, Any] = {}
    if action == "PRIMARY":
        found = cursor.accept_one_of("PLANNED", "FORCE")
        action = action if found is None else found.text
    elif action in {"SET", "UNSET"}:
        reader = ClauseReader(_SET_CLAUSES, "ALTER FAILOVER GROUP")
        reader.parse_changes(cursor, unset=action == "UNSET")
        values, action = reader.field_values(), "SET"
    elif action in {"ADD", "REMOVE"}:
        values["sites"] = _parse_names("a site", cursor)
        cursor.expect("TO" if action == "ADD" else "FROM")
        if cursor.is_next("ALLOWED_DATABASES"):
            raise cursor.make_error(
                "ALLOWED_DATABASES cannot be changed: a group contains all databases"
            )
        cursor.expect("ALLOWED_ACCOUNTS")
    cursor.expect_end("ALTER FAILOVER GROUP")
    return AlterGroup(name, action, values, if_exists)


def _parse_drop(cursor: TokenCursor, if_exists: bool) -> DropGroup:
    name = cursor.parse_identifier(_LABEL)
    cursor.expect_end("DROP")
    return DropGroup(name, if_exists)


# Listings.


def _require_monitor(session: StatementSession) -> None:
    for privilege in (MONITOR, FAILOVER):
        if has_account_privilege(session.connection, {session.role, PUBLIC}, privilege):
            return
    raise PrivilegeMissing(
        role=to_display_name(session.role), privilege=MONITOR, object="the account"
    )


def _list_groups(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    _require_monitor(session)
    group = failover_groups.find_group(session.connection)
    if group is not None:
        has_state = group.role is SiteRole.SECONDARY and group.state_at is not None
        lag_s = (session.now - group.state_at).total_seconds() if has_state else None  # type: ignore[operator]
        yield (
            group.created_at,
            group.name,
            group.kind,
            group.site,
            group.role.value,
            group.epoch,
            group.point,
            group.is_promotable if group.role is SiteRole.SECONDARY else None,
            None if lag_s is None else round(lag_s, 3),
            group.primary_url,
            group.protects_tokens if group.is_primary else None,
            group.suspended,
            group.switch_requested,
            group.last_error,
            ", ".join(group.settings.allowed_sites),
            ", ".join(group.settings.addresses),
            group.settings.comment,
            group.owner,
        )


def _list_replicas(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    _require_monitor(session)
    group = failover_groups.find_group(session.connection)
    for slot in failover_groups.list_slots(session.connection):
        behind = None if group is None or slot.point is None else group.point - slot.point
        silent_s = (session.now - slot.requested_at).total_seconds()
        yield slot.site, slot.url, slot.point, behind, slot.requested_at, round(silent_s, 3)


def _list_diverged_changes(_statement: ShowObjects, session: StatementSession) -> Iterator[ShowRow]:
    _require_monitor(session)
    for row in failover_groups.list_diverged_changes(session.connection):
        yield row.at, row.epoch, row.kind, row.table_name, row.channel, row.path, row.detail


_GROUP_COLUMNS = (
    "created_on name kind site role epoch state promotable behind_s primary_url protects_tokens "
    "suspended switching last_error allowed_accounts addresses comment owner"
)
LISTINGS = (
    Listing("FAILOVER GROUPS", NameLevel.ACCOUNT, _GROUP_COLUMNS, _list_groups),
    Listing("REPLICATION GROUPS", NameLevel.ACCOUNT, _GROUP_COLUMNS, _list_groups),
    Listing(
        "REPLICAS",
        NameLevel.ACCOUNT,
        "name url state states_behind seen_at silent_s",
        _list_replicas,
    ),
    Listing(
        "DIVERGED CHANGES",
        NameLevel.ACCOUNT,
        "recorded_at epoch kind name channel path detail",
        _list_diverged_changes,
    ),
)
KINDS = tuple(
    StatementKind(
        f"{kind} GROUP",
        partial(_parse_create, kind),
        _parse_alter,
        _parse_drop,
        is_replaceable=False,
    )
    for kind in ("FAILOVER", "REPLICATION")
)
