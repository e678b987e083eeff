"""DELETE, UPDATE and MERGE: parses a statement, and applies it in one commit that replaces files.

A statement first migrates the rows that are committed when it begins, and then changes only these.
It does not block other writers. If another commit replaces one of its files before it commits, the
statement starts again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.clock import Clock
from snowmelt.errors import LoadOvertaken, LoadRefused, ServiceBusy, StatementError
from snowmelt.schema.types import TableName, TableSchema, to_display_name, to_internal_name
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.write_commit import (
    WriteTarget,
    resolve_write_target,
    run_as_load,
)
from snowmelt.spark.datasource.write_task import WritePlan, name_values_by_position
from snowmelt.spark.insert_statements import (
    encode_variants_as_json,
    make_load_result,
    write_rows,
)
from snowmelt.spark.positioned_rows import (
    ACTION_COLUMN,
    FILE_COLUMN,
    ROW_COLUMN,
    VALUE_PREFIX,
    RewritePlan,
    RewrittenFile,
    create_positioned_frame,
    rewrite_file,
)
from snowmelt.spark.sql.table_references import (
    read_dotted_name,
    to_internal_parts,
    tokenize_statement,
)
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns, quote_identifier
from snowmelt.table.load_commit import LoadResult
from snowmelt.table.snapshot import take_snapshots
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from snowmelt.table.native_file_writer import WrittenFile

ROW_CHANGE_RESULT_COLUMNS = (
    "number of rows inserted",
    "number of rows updated",
    "number of rows deleted",
)
# Placeholder for the target table in the queries of a statement. No catalog has this name.
TARGET_PARTS = ("SNOWMELT_ROW_CHANGES", "PUBLIC", "TARGET")
_FULL_NAME_PARTS = 3
_MAX_ATTEMPTS = 5
_MAX_STATEMENT_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class MatchedClause:
    """Rows of the table to change: the values to set by column, or None to delete the rows.

    `takes_all` is True for `UPDATE SET *`.
    """

    condition: str | None
    values: Mapping[str, str] | None
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class NotMatchedClause:
    """Rows of the source to insert: columns (None: all, by position) and their values."""

    condition: str | None
    columns: tuple[str, ...] | None
    values: tuple[str, ...]
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """One statement. `alias` and `source` (a relation with its alias) are Spark SQL text."""

    kind: str
    table: TableName
    alias: str
    source: str | None
    source_alias: str | None
    condition: str | None
    matched: tuple[MatchedClause, ...]
    not_matched: tuple[NotMatchedClause, ...]
    text: str

    @property
    def privileges(self) -> list[str]:
        """Privileges that the statement requires."""
        kinds = ["DELETE" if each.values is None else "UPDATE" for each in self.matched]
        return list(dict.fromkeys([*kinds, *(["INSERT"] if self.not_matched else [])]))


def parse_row_change(text: str, namespace: tuple[str, ...]) -> RowChange | None:
    """Parse a DELETE, UPDATE or MERGE statement, or return None for any other statement.

    Args:
        text: The statement.
        namespace: Database and schema that complete a short table name.

    Raises:
        StatementError: If the statement is malformed.
    """
    try:
        tokens = tokenize_statement(text)
    except SqlglotError:
        return None
    kind = tokens[0].text.upper() if tokens else ""
    if kind not in _PARSERS or tokens[0].token_type in _LITERAL_TYPES:
        return None
    if tokens[-1].token_type == TokenType.SEMICOLON:
        tokens = tokens[:-1]
    return _PARSERS[kind](_Words(text, tokens), namespace)


class _Words:
    """Cursor over the tokens of a statement. It skips words inside parentheses and CASE … END."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self._tokens = tokens
        self.at = 1

    def accept(self, *words: str) -> bool:
        """Skip these words. If other words follow, stay in place and return False."""
        following = self._tokens[self.at : self.at + len(words)]
        found = [each.text.upper() for each in following if not _is_quoted(each)]
        if found != list(words):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Skip these words.

        Raises:
            StatementError: If other words follow.
        """
        if not self.accept(*words):
            there = self._tokens[self.at].text if self.at < len(self._tokens) else "the end"
            raise _make_error(f"expected {' '.join(words)} here, not {there}")

    @property
    def is_at_end(self) -> bool:
        """True after the last token."""
        return self.at >= len(self._tokens)

    def read_name(self) -> list[Token]:
        """Read a dotted name. Return an empty list if there is none."""
        run = read_dotted_name(self._tokens, self.at)
        self.at += max(2 * len(run) - 1, 0)
        return run

    def read_alias(self, stops: Sequence[str]) -> str | None:
        """Read an alias, with or without AS. A word in `stops` is not an alias."""
        if not self.accept("AS") and (self.is_at_end or self.is_at(*stops)):
            return None
        run = self.read_name()
        if len(run) != 1:
            raise _make_error("an alias must be a single name")
        return quote_identifier(run[0].text)

    def is_at(self, *words: str) -> bool:
        """Return True if the next word is one of these."""
        if self.is_at_end:
            return False
        token = self._tokens[self.at]
        return not _is_quoted(token) and token.text.upper() in words

    def read_until(self, *words: str) -> str:
        """Return the text up to the next of these words (which may include a comma) or the end."""
        begin, depth, cases = self.at, 0, 0
        while not self.is_at_end:
            token = self._tokens[self.at]
            word = "" if _is_quoted(token) else token.text.upper()
            if not depth and not cases and word in words:
                break
            depth += (token.token_type == TokenType.L_PAREN) - (
                token.token_type == TokenType.R_PAREN
            )
            cases += (word == "CASE") - (word == "END")
            if depth < 0:
                break
            self.at += 1
        if begin == self.at:
            raise _make_error(f"an expression is missing before {' or '.join(words) or 'the end'}")
        return self.text[self._tokens[begin].start : self._tokens[self.at - 1].end + 1]

    def read_list(self) -> list[str]:
        """Return the text of each item of a list in parentheses."""
        self.expect("(")
        texts = [self.read_until(",")]
        while self.accept(","):
            texts.append(self.read_until(","))
        self.expect(")")
        return texts


_LITERAL_TYPES = frozenset({TokenType.STRING, TokenType.IDENTIFIER})


def _is_quoted(token: Token) -> bool:
    return token.token_type in _LITERAL_TYPES


def _make_error(reason: str) -> StatementError:
    return StatementError(f"{reason[0].upper()}{reason[1:]}.", reason=reason)


def _read_target(
    words: _Words, namespace: tuple[str, ...], stops: Sequence[str]
) -> tuple[TableName, str]:
    """Read the table and its alias. The default alias is the last part of the table's name."""
    run = words.read_name()
    parts = to_internal_parts(run)
    if not run or not _FULL_NAME_PARTS - len(namespace) <= len(parts) <= _FULL_NAME_PARTS:
        raise _make_error(
            "write the full name of the table, database.schema.table, with backticks around names that "
            "need quotes"
        )
    alias = words.read_alias(stops) or quote_identifier(run[-1].text)
    return TableName(*namespace[: _FULL_NAME_PARTS - len(parts)], *parts), alias


def _read_assignments(words: _Words, *stops: str) -> dict[str, str]:
    values: dict[str, str] = {}
    while True:
        run = words.read_name()
        if not run:
            raise _make_error("SET is followed by columns and their values: column = value")
        column = to_internal_parts(run)[-1]
        if column in values:
            raise _make_error(f"column {to_display_name(column)} is set twice")
        words.expect("=")
        values[column] = words.read_until(",", *stops)
        if not words.accept(","):
            return values


def _parse_delete(words: _Words, namespace: tuple[str, ...]) -> RowChange:
    words.expect("FROM")
    table, alias = _read_target(words, namespace, ("WHERE",))
    clause = MatchedClause(_read_where(words), None)
    return RowChange("DELETE", table, alias, None, None, None, (clause,), (), words.text)


def _parse_update(words: _Words, namespace: tuple[str, ...]) -> RowChange:
    table, alias = _read_target(words, namespace, ("SET",))
    words.expect("SET")
    values = _read_assignments(words, "WHERE")
    clause = MatchedClause(_read_where(words), values)
    return RowChange("UPDATE", table, alias, None, None, None, (clause,), (), words.text)


def _read_where(words: _Words) -> str | None:
    condition = words.read_until() if words.accept("WHERE") else None
    if not words.is_at_end:
        raise _make_error("the statement ends after the condition of WHERE")
    return condition


def _parse_merge(words: _Words, namespace: tuple[str, ...]) -> RowChange:
    words.expect("INTO")
    table, alias = _read_target(words, namespace, ("USING",))
    words.expect("USING")
    if words.is_at("("):
        words.expect("(")
        source, name = f"({words.read_until()})", None
        words.expect(")")
    else:
        run = words.read_name()
        if not run:
            raise _make_error("USING is followed by a table, or a query in parentheses")
        source = ".".join(
            quote_identifier(each.text) if _is_quoted(each) else each.text for each in run
        )
        name = quote_identifier(run[-1].text)
    source_alias = words.read_alias(("ON",)) or name
    if source_alias is None:
        raise _make_error("the query of USING needs an alias")
    words.expect("ON")
    condition = words.read_until("WHEN")
    matched: list[MatchedClause] = []
    missing: list[NotMatchedClause] = []
    while words.accept("WHEN"):
        if words.accept("MATCHED"):
            matched.append(_read_matched(words))
        else:
            words.expect("NOT", "MATCHED")
            if words.accept("BY"):
                words.expect("TARGET")
            missing.append(_read_not_matched(words))
    if not words.is_at_end or not (matched or missing):
        raise _make_error("a MERGE ends with clauses WHEN MATCHED or WHEN NOT MATCHED")
    return RowChange(
        "MERGE",
        table,
        alias,
        source,
        source_alias,
        condition,
        tuple(matched),
        tuple(missing),
        words.text,
    )


def _read_matched(words: _Words) -> MatchedClause:
    condition = words.read_until("THEN") if words.accept("AND") else None
    words.expect("THEN")
    if words.accept("DELETE"):
        return MatchedClause(condition, None)
    words.expect("UPDATE", "SET")
    if words.accept("*"):
        return MatchedClause(condition, {}, takes_all=True)
    return MatchedClause(condition, _read_assignments(words, "WHEN"))


def _read_not_matched(words: _Words) -> NotMatchedClause:
    condition = words.read_until("THEN") if words.accept("AND") else None
    words.expect("THEN")
    words.expect("INSERT")
    if words.accept("*"):
        return NotMatchedClause(condition, None, (), takes_all=True)
    columns = None
    if words.is_at("("):
        columns = tuple(map(_to_column_name, words.read_list()))
    words.expect("VALUES")
    return NotMatchedClause(condition, columns, tuple(words.read_list()))


def _to_column_name(text: str) -> str:
    if text.startswith("`") and text.endswith("`"):
        return text[1:-1].replace("``", "`")
    return to_internal_name(text)


_PARSERS: Mapping[str, Callable[[_Words, tuple[str, ...]], RowChange]] = {
    "DELETE": _parse_delete,
    "UPDATE": _parse_update,
    "MERGE": _parse_merge,
}


# --- Execution.


class RowChangeRunner:
    """Runner of statements that change rows.

    `run_query(text, target)` returns a query as a DataFrame, with `target` in place of the table
    `TARGET_PARTS`. `migrate(table)` migrates all committed rows of a table.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: LakeConnection,
        clock: Clock,
        *,
        run_query: Callable[[str, DataFrame], DataFrame],
        migrate: Callable[[TableName], object],
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._clock = clock
        self._run_query = run_query
        self._migrate = migrate

    def run(self, change: RowChange) -> tuple[int, int, int]:
        """Run a statement. Return the numbers of inserted, updated and deleted rows.

        Raises:
            TableNotFound: If the table does not exist or the role lacks a privilege on it.
            StatementError: If a column does not exist.
            LoadRefused: If a value does not fit its column, a row matches several rows of the source, or
                rows cannot be read. No row was changed.
            LoadOvertaken: If other commits repeatedly replaced the same files. No row was changed.
            UnknownOutcome: If the rows may have been changed. LOAD_HISTORY shows the outcome.
        """
        database = self._connection.database
        with database.reading() as connection:
            table = find_table(connection, change.table)
            for privilege in (*change.privileges, "SELECT"):
                require_table_privilege(connection, self._connection.role, table, privilege)
        left = _MAX_ATTEMPTS
        while True:
            left -= 1
            try:
                return self._run_once(change)
            except LoadOvertaken:
                if not left:
                    raise

    def _run_once(self, change: RowChange) -> tuple[int, int, int]:
        frame, schema = self._open_target(change)
        updated = deleted = inserted = 0

        def write() -> LoadResult:
            nonlocal updated, deleted, inserted
            files: list[WrittenFile] = []
            removed = set()
            for each in self._rewrite(change, frame, schema, target.plan):
                files += each.written
                removed.add(each.path)
                updated, deleted = updated + each.updated, deleted + each.deleted
            for rows, names in self._list_insertions(change, frame, schema):
                plan = self._resolve(change, names).plan
                written = write_rows(
                    replace(plan, load_id=target.plan.load_id, folder=target.plan.folder), rows
                )
                inserted += sum(each.rows for each in written)
                files += [file for each in written for file in each.files]
            to_path = open_warehouse(self._connection.warehouse).to_path
            changed = inserted + updated + deleted
            return make_load_result(files, changed, {to_path(path) for path in removed})

        target = self._resolve(change, [column.name for column in schema.columns])
        what = f"{change.kind} of table {change.table}"
        run_as_load(target, write, clock=self._clock, what=what, privileges=change.privileges)
        return inserted, updated, deleted

    def _open_target(self, change: RowChange) -> tuple[DataFrame, TableSchema]:
        """Migrate the rows of the table. Return them with their positions."""
        database = self._connection.database
        with database.reading() as connection:
            last = find_table(connection, change.table).last_seq
        began = self._clock.monotonic()
        while True:
            self._migrate(change.table)
            [snapshot] = take_snapshots(database, [change.table], clock=self._clock)
            if snapshot.watermark >= last:
                break
            if self._clock.monotonic() - began > _MAX_MIGRATION_WAIT_S:
                raise ServiceBusy(
                    reason=f"rows of table {change.table} are being migrated. Retry later"
                )
            self._clock.sleep(_POLL_INTERVAL_S)
        held = sorted(seq for seq in snapshot.chunk_numbers if seq <= snapshot.watermark)
        if held:
            raise LoadRefused(
                what=f"{change.kind} of table {change.table}",
                reason=f"chunk {held[0]} is quarantined, so its rows cannot be read; restore its blob, or "
                "discard the chunk with `snowmelt chunks give-up`",
            )
        schema = snapshot.table.schema
        words = {token.text.lower() for token in tokenize_statement(change.text)}
        columns = [each for each in list_visible_columns(schema) if each.name.lower() in words]
        paths = [file.path for file in snapshot.list_native_files()]
        cores = self._connection.cores
        return create_positioned_frame(self._spark, columns, paths, schema, cores), schema

    def _rewrite(
        self, change: RowChange, frame: DataFrame, schema: TableSchema, plan: WritePlan
    ) -> list[RewrittenFile]:
        if not change.matched:
            return []
        cases: list[str] = []
        values: list[tuple[int, str]] = []
        assignments: dict[int, dict[str, int]] = {}
        for action, clause in enumerate(change.matched):
            condition = "true" if clause.condition is None else f"({clause.condition})"
            cases.append(f"WHEN {condition} THEN {action}")
            if clause.values is None:
                continue
            assignments[action] = {}
            given = clause.values
            if clause.takes_all:
                given = {
                    each.name: f"{change.source_alias}.{quote_identifier(each.name)}"
                    for each in schema.columns
                }
            for name, text in given.items():
                if schema.column(name) is None:
                    raise _make_error(
                        f"column {to_display_name(name)} does not exist in table {change.table}"
                    )
                assignments[action][name] = len(values)
                values.append((action, text))
        action_text = f"CASE {' '.join(cases)} END"
        target = f"{'.'.join(TARGET_PARTS)} AS {change.alias}"
        if change.source is None:
            relation = target
        else:
            relation = (
                f"{target} JOIN {change.source} AS {change.source_alias} ON ({change.condition})"
            )
        selected = [
            f"{change.alias}.`{FILE_COLUMN}`",
            f"{change.alias}.`{ROW_COLUMN}`",
            f"{action_text} AS `{ACTION_COLUMN}`",
            *(
                f"CASE WHEN ({action_text}) = {action} THEN {text} END AS `{VALUE_PREFIX}{at}`"
                for at, (action, text) in enumerate(values)
            ),
        ]
        query = f"SELECT {', '.join(selected)} FROM {relation}"
        changes = encode_variants_as_json(self._run_query(query, frame))
        plan_of_files = RewritePlan(plan, assignments, f"{change.kind} of table {change.table}")
        outcomes = (
            changes.where(col(ACTION_COLUMN).isNotNull())
            .groupBy(FILE_COLUMN)
            .applyInArrow(lambda rows: _rewrite_task(plan_of_files, rows), "outcome binary")
            .collect()
        )
        # Safe to unpickle: written by `_rewrite_task`.
        return [pickle.loads(row.outcome) for row in outcomes]  # noqa: S301

    def _list_insertions(
        self, change: RowChange, frame: DataFrame, schema: TableSchema
    ) -> Iterator[tuple[DataFrame, Sequence[str]]]:
        earlier: list[str] = []
        for clause in change.not_matched:
            if clause.takes_all:
                names: Sequence[str] = [each.name for each in schema.columns]
                texts: Sequence[str] = [
                    f"{change.source_alias}.{quote_identifier(name)}" for name in names
                ]
            else:
                texts = clause.values
                names = clause.columns or name_values_by_position(
                    schema, None, len(texts), change.table
                )
            if len(names) != len(texts):
                raise _make_error(f"INSERT names {len(names)} columns and has {len(texts)} values")
            conditions = [f"NOT coalesce(({each}), false)" for each in earlier]
            conditions.append("true" if clause.condition is None else f"({clause.condition})")
            earlier.append(clause.condition or "true")
            query = (
                f"SELECT {', '.join(texts)} FROM {change.source} AS {change.source_alias} "
                f"LEFT ANTI JOIN {'.'.join(TARGET_PARTS)} AS {change.alias} ON ({change.condition}) "
                f"WHERE {' AND '.join(conditions)}"
            )
            yield self._run_query(query, frame), names

    def _resolve(self, change: RowChange, names: Sequence[str]) -> WriteTarget:
        return resolve_write_target(
            self._connection,
            change.table,
            names,
            change.text[:_MAX_STATEMENT_CHARACTERS],
            timezone=str(self._spark.conf.get("spark.sql.session.timeZone")),
            privileges=change.privileges,
        )


_MAX_MIGRATION_WAIT_S = 60.0
_POLL_INTERVAL_S = 0.2


def _rewrite_task(plan: RewritePlan, changes: pa.Table) -> pa.Table:
    outcome = pickle.dumps(rewrite_file(plan, changes))
    return pa.table({"outcome": pa.array([outcome], pa.binary())})
