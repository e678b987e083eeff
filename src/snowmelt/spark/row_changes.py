"""DELETE, UPDATE and MERGE: parses a statement, and applies it in one commit that replaces files.

A statement first migrates the rows that are committed when it begins, and then changes only these.
It does not block other writers. If another commit replaces one of its files before it commits, the
statement starts again.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from snowmelt import failpoints
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.sql.cursor import is_at_end
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, read_first_words, tokenize
from snowmelt.clock import Clock
from snowmelt.errors import LoadOvertaken, LoadRefused, ServiceBusy, StatementError
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName, TableSchema, to_display_name, to_internal_name
from snowmelt.spark.companion_values import CompanionValues
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.write_commit import (
    WriteTarget,
    resolve_write_target,
    run_as_load,
)
from snowmelt.spark.datasource.write_task import (
    NativeRowWriter,
    WritePlan,
    WriteTaskResult,
    name_values_by_position,
)
from snowmelt.spark.insert_statements import encode_variants_as_json, make_load_result
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
from snowmelt.spark.sql.cursor import (
    NAME_KINDS,
    SparkCursor,
    match_brackets,
    quote_name_token,
    read_dotted_name,
)
from snowmelt.spark.tables.spark_column_mapping import list_visible_columns, quote_identifier
from snowmelt.table.load_commit import LoadResult
from snowmelt.table.snapshot import TableSnapshot, take_snapshots
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
class _Target:
    """Rows of the table with their positions, and the snapshots that the statement reads."""

    frame: DataFrame
    schema: TableSchema
    snapshots: dict[TableName, TableSnapshot]


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

    @property
    def expressions(self) -> list[str]:
        """Texts of the conditions and values."""
        texts = [self.condition]
        for clause in self.matched:
            texts += [clause.condition, *(clause.values or {}).values()]
        for other in self.not_matched:
            texts += [other.condition, *other.values]
        return [each for each in texts if each is not None]


def parse_row_change(text: str, namespace: tuple[str, ...]) -> RowChange | None:
    """Parse a DELETE, UPDATE or MERGE statement, or return None for any other statement.

    Args:
        text: The statement.
        namespace: Database and schema that complete a short table name.

    Raises:
        StatementError: If the statement is malformed.
    """
    parse = _PARSERS.get(read_first_words(text)[0])
    if parse is None:
        return None
    cursor = SparkCursor(text)
    cursor.advance()
    change = parse(cursor, namespace, text)
    cursor.expect_end(change.kind)
    return change


def _make_error(reason: str) -> StatementError:
    return StatementError(f"{reason}.", reason=reason)


def _parse_target(
    cursor: SparkCursor, namespace: tuple[str, ...], stop: str
) -> tuple[TableName, str]:
    """Parse the table and its alias. The default alias is the last part of the table's name."""
    table, name = cursor.parse_table(namespace)
    return table, cursor.read_alias((stop,)) or name


def _parse_assignments(cursor: SparkCursor, *stops: str) -> dict[str, str]:
    values: dict[str, str] = {}
    while True:
        run = cursor.read_name()
        if not run:
            raise cursor.make_error("SET is followed by columns and their values: column = value")
        column = run[-1].text
        if column in values:
            raise cursor.make_error(f"Column {to_display_name(column)} is set twice")
        cursor.expect("=")
        values[column] = cursor.read_until(",", *stops)
        if not cursor.accept(","):
            return values


def _parse_delete(cursor: SparkCursor, namespace: tuple[str, ...], text: str) -> RowChange:
    cursor.expect("FROM")
    table, alias = _parse_target(cursor, namespace, "WHERE")
    clause = MatchedClause(_parse_where(cursor), None)
    return RowChange("DELETE", table, alias, None, None, None, (clause,), (), text)


def _parse_update(cursor: SparkCursor, namespace: tuple[str, ...], text: str) -> RowChange:
    table, alias = _parse_target(cursor, namespace, "SET")
    cursor.expect("SET")
    values = _parse_assignments(cursor, "WHERE")
    clause = MatchedClause(_parse_where(cursor), values)
    return RowChange("UPDATE", table, alias, None, None, None, (clause,), (), text)


def _parse_where(cursor: SparkCursor) -> str | None:
    return cursor.read_until() if cursor.accept("WHERE") else None


def _parse_merge(cursor: SparkCursor, namespace: tuple[str, ...], text: str) -> RowChange:
    cursor.expect("INTO")
    table, alias = _parse_target(cursor, namespace, "USING")
    cursor.expect("USING")
    if cursor.accept("("):
        source, name = f"({cursor.read_until()})", None
        cursor.expect(")")
    else:
        run = cursor.read_name()
        if not run:
            raise cursor.make_error("USING is followed by a table, or a query in parentheses")
        source, name = ".".join(each.source_text for each in run), quote_name_token(run[-1])
    source_alias = cursor.read_alias(("ON",)) or name
    if source_alias is None:
        raise cursor.make_error("The query of USING needs an alias")
    cursor.expect("ON")
    condition = cursor.read_until("WHEN")
    matched: list[MatchedClause] = []
    missing: list[NotMatchedClause] = []
    while cursor.accept("WHEN"):
        if cursor.accept("MATCHED"):
            matched.append(_parse_matched(cursor))
        else:
            cursor.expect("NOT", "MATCHED")
            if cursor.accept("BY"):
                cursor.expect("TARGET")
            missing.append(_parse_not_matched(cursor))
    if not is_at_end(cursor) or not (matched or missing):
        raise cursor.make_error("A MERGE ends with clauses WHEN MATCHED or WHEN NOT MATCHED")
    return RowChange(
        "MERGE",
        table,
        alias,
        source,
        source_alias,
        condition,
        tuple(matched),
        tuple(missing),
        text,
    )


def _parse_matched(cursor: SparkCursor) -> MatchedClause:
    condition = cursor.read_until("THEN") if cursor.accept("AND") else None
    cursor.expect("THEN")
    if cursor.accept("DELETE"):
        return MatchedClause(condition, None)
    cursor.expect("UPDATE", "SET")
    if cursor.accept("*"):
        return MatchedClause(condition, {}, takes_all=True)
    return MatchedClause(condition, _parse_assignments(cursor, "WHEN"))


def _parse_not_matched(cursor: SparkCursor) -> NotMatchedClause:
    condition = cursor.read_until("THEN") if cursor.accept("AND") else None
    cursor.expect("THEN", "INSERT")
    if cursor.accept("*"):
        return NotMatchedClause(condition, None, (), takes_all=True)
    columns = None
    if cursor.is_next("("):
        columns = tuple(map(_to_column_name, cursor.read_list()))
    cursor.expect("VALUES")
    return NotMatchedClause(condition, columns, tuple(cursor.read_list()))


def _to_column_name(text: str) -> str:
    if text.startswith("`") and text.endswith("`"):
        return text[1:-1].replace("``", "`")
    return to_internal_name(text)


_PARSERS: Mapping[str, Callable[[SparkCursor, tuple[str, ...], str], RowChange]] = {
    "DELETE": _parse_delete,
    "UPDATE": _parse_update,
    "MERGE": _parse_merge,
}


# --- Execution.


@dataclass(eq=False)
class RowChangeRunner:
    """Runner of statements that change rows.

    `run_query(text, target, snapshots)` returns a query as a DataFrame, with `target` in place of the
    table `TARGET_PARTS`. It reads `snapshots`, and adds those of other tables. `migrate(table)`
    migrates all committed rows of a table.
    """

    _spark: SparkSession
    _connection: LakeConnection
    _clock: Clock
    _run_query: Callable[[str, DataFrame, MutableMapping[TableName, TableSnapshot]], DataFrame]
    _migrate: Callable[[TableName], object]

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
        source = self._open_target(change)
        _check_names(change, source.schema)
        updated = deleted = inserted = 0

        def write() -> LoadResult:
            nonlocal updated, deleted, inserted
            files: list[WrittenFile] = []
            removed = set()
            for each in self._rewrite(change, source, target.plan):
                files += each.written
                removed.add(each.path)
                updated, deleted = updated + each.updated, deleted + each.deleted
            for inserts in self._insert(change, source, target.plan):
                inserted += inserts.rows
                files += inserts.files
            to_path = open_warehouse(self._connection.warehouse).to_path
            changed = inserted + updated + deleted
            return make_load_result(files, changed, {to_path(path) for path in removed})

        target = self._resolve(change, [column.name for column in source.schema.columns])
        what = f"{change.kind} of table {change.table}"
        run_as_load(target, write, clock=self._clock, what=what, privileges=change.privileges)
        return inserted, updated, deleted

    def _open_target(self, change: RowChange) -> _Target:
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
        words = {token.text.lower() for token in tokenize(change.text, SqlRules.SPARK)}
        every = list_visible_columns(schema)
        read = {
            each.column.name
            for each in every
            if not words.isdisjoint({each.name.lower(), each.column.name.lower()})
        }
        columns = [each for each in every if each.column.name in read]
        paths = [file.path for file in snapshot.list_native_files()]
        cores = self._connection.cores
        frame = create_positioned_frame(self._spark, columns, paths, schema, cores)
        # The table as a source has the rows of the target, without those that arrived since.
        migrated = replace(snapshot, up_to=snapshot.watermark, chunks=())
        return _Target(frame, schema, {change.table: migrated})

    def _run(self, change: RowChange, query: str, source: _Target) -> DataFrame:
        try:
            return self._run_query(_unqualify(change, query), source.frame, source.snapshots)
        except AnalysisException as error:
            if error.getCondition() not in _AGGREGATE_CONDITIONS:
                raise
            raise _make_error(
                "An aggregate function in an expression of DELETE, UPDATE or MERGE: compute it in a nested query, "
                "or in the source of a MERGE"
            ) from error

    def _rewrite(self, change: RowChange, source: _Target, plan: WritePlan) -> list[RewrittenFile]:
        if not change.matched:
            return []
        schema = source.schema
        cases: list[str] = []
        values: list[tuple[int, str]] = []
        assignments: dict[int, dict[str, int | None]] = {}
        companions = self._list_companions(change, source)
        for action, clause in enumerate(change.matched):
            condition = "true" if clause.condition is None else f"({clause.condition})"
            cases.append(f"WHEN {condition} THEN {action}")
            if clause.values is None:
                continue
            assignments[action] = {}
            given = clause.values
            if clause.takes_all:
                given = self._list_source_columns(change, source)
            for name in given:
                if schema.column(name) is None:
                    raise _make_error(
                        f"Column {to_display_name(name)} does not exist in table {change.table}"
                    )
            given = dict(_replace_defaults(given.items(), schema, assignments[action]))
            for name, text in (*given.items(), *companions.find_values(given.items())):
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
                # The alias, so that a condition such as rand() < 0.5 is evaluated once.
                f"CASE WHEN `{ACTION_COLUMN}` = {action} THEN {text} END AS `{VALUE_PREFIX}{at}`"
                for at, (action, text) in enumerate(values)
            ),
        ]
        query = f"SELECT {', '.join(selected)} FROM {relation}"
        changes = encode_variants_as_json(self._run(change, query, source))
        plan_of_files = RewritePlan(plan, assignments, f"{change.kind} of table {change.table}")
        outcomes = (
            changes.where(col(ACTION_COLUMN).isNotNull())
            .groupBy(FILE_COLUMN)
            .applyInArrow(lambda rows: _rewrite_task(plan_of_files, rows), "outcome binary")
            .collect()
        )
        # Safe to unpickle: written by `_rewrite_task`.
        return [pickle.loads(row.outcome) for row in outcomes]  # noqa: S301

    def _insert(
        self, change: RowChange, source: _Target, target: WritePlan
    ) -> list[WriteTaskResult]:
        if not change.not_matched:
            return []
        companions = self._list_companions(change, source)
        is_single = len(change.not_matched) == 1
        conditions: list[str] = []
        plans: list[WritePlan] = []
        values: list[str] = []
        for action, clause in enumerate(change.not_matched):
            if clause.takes_all:
                every = self._list_source_columns(change, source)
                names: Sequence[str] = list(every)
                texts: Sequence[str] = list(every.values())
            else:
                texts = clause.values
                names = clause.columns or name_values_by_position(
                    source.schema, None, len(texts), change.table
                )
            if len(names) != len(texts):
                raise _make_error(f"INSERT names {len(names)} columns and has {len(texts)} values")
            pairs = _replace_defaults(zip(names, texts, strict=True), source.schema)
            pairs += companions.find_values(pairs)
            plan = self._resolve(change, [name for name, _ in pairs]).plan
            first = len(values) + 1
            sources = tuple(None if at is None else at + first for at in plan.sources)
            plans.append(
                replace(plan, load_id=target.load_id, folder=target.folder, sources=sources)
            )
            conditions.append("true" if clause.condition is None else f"({clause.condition})")
            if not is_single:
                pairs = [
                    (name, f"CASE WHEN `{ACTION_COLUMN}` = {action} THEN {text} END")
                    for name, text in pairs
                ]
            values += [
                f"{text} AS `{VALUE_PREFIX}{at}`" for at, (_, text) in enumerate(pairs, start=first)
            ]
        # One query for all clauses, so that a condition such as rand() < 0.5 is evaluated once. Spark
        # calls Python functions for all rows of a CASE, so a single clause has a WHERE instead.
        cases = [f"WHEN {each} THEN {action}" for action, each in enumerate(conditions)]
        action_text = "0" if is_single else f"CASE {' '.join(cases)} END"
        selected = [f"{action_text} AS `{ACTION_COLUMN}`", *values]
        query = (
            f"SELECT {', '.join(selected)} FROM {change.source} AS {change.source_alias} "
            f"LEFT ANTI JOIN {'.'.join(TARGET_PARTS)} AS {change.alias} ON ({change.condition})"
        )
        if is_single:
            query += f" WHERE {conditions[0]}"
            # Never run. Without columns beside it, an aggregate would insert one row.
            beside = ", ".join([f"{change.source_alias}.*", *values])
            self._run(
                change, f"SELECT {beside} FROM {change.source} AS {change.source_alias}", source
            )
        rows = encode_variants_as_json(self._run(change, query, source))
        outcomes = (
            rows.where(col(ACTION_COLUMN).isNotNull())
            .mapInArrow(partial(_insert_task, plans), "outcome binary")
            .collect()
        )
        # Safe to unpickle: written by `_insert_task`.
        return [each for row in outcomes for each in pickle.loads(row.outcome)]  # noqa: S301

    def _list_companions(self, change: RowChange, source: _Target) -> CompanionValues:
        names = {change.alias: [each.name for each in list_visible_columns(source.schema)]}
        if change.source is not None and len(source.schema.columns) < len(names[change.alias]):
            query = f"SELECT * FROM {change.source} AS {change.source_alias}"
            names[str(change.source_alias)] = self._run(change, query, source).columns
        return CompanionValues(source.schema, names)

    def _list_source_columns(self, change: RowChange, source: _Target) -> dict[str, str]:
        """Return the column of the source for each column of the table, for the values `*`."""
        visible = {each.native_name: each for each in list_visible_columns(source.schema)}
        names = {each.name: each.name for each in source.schema.columns}
        if any(visible[name].name != name for name in names):
            # Spark finds names without case, so select between those that differ only in case.
            query = f"SELECT * FROM {change.source} AS {change.source_alias}"
            given = set(self._run(change, query, source).columns)
            folded = Counter(name.lower() for name in names)
            for name in names:
                if folded[name.lower()] == 1:
                    continue
                found = [each for each in (visible[name].name, name) if each in given]
                if not found:
                    raise _make_error(
                        f"The source has no column {to_display_name(name)}: write the columns and their "
                        "values in place of *"
                    )
                names[name] = found[0]
        return {
            name: f"{change.source_alias}.{quote_identifier(each)}" for name, each in names.items()
        }

    def _resolve(self, change: RowChange, names: Sequence[str]) -> WriteTarget:
        return resolve_write_target(
            self._connection,
            change.table,
            names,
            change.text[:_MAX_STATEMENT_CHARACTERS],
            timezone=str(self._spark.conf.get("spark.sql.session.timeZone")),
            privileges=change.privileges,
        )


def _replace_defaults(
    values: Iterable[tuple[str, str]],
    schema: TableSchema,
    defaults: MutableMapping[str, int | None] | None = None,
) -> list[tuple[str, str]]:
    """Return values without DEFAULT: NULL for columns without a default, and nothing for the others.

    Adds columns that get their default to `defaults`, with None.
    """
    kept = []
    for name, text in values:
        column = schema.column(name)
        if text.upper() != "DEFAULT":
            kept.append((name, text))
        elif column is None or column.default is None:
            kept.append((name, "NULL"))
        elif defaults is not None:
            defaults[name] = None
    return kept


def _check_names(change: RowChange, schema: TableSchema) -> None:
    """Reject expressions in which Spark would read other columns or rows than the statement means.

    Raises:
        StatementError: If an expression has `*` for columns of the table, a window function, or a
            function that returns several rows, or names a column that has another name in Spark,
            because an earlier one differs from it only in case.
    """
    renamed = {
        each.native_name: each.name
        for each in list_visible_columns(schema)
        if each.name != each.native_name
    }
    for text in change.expressions:
        tokens = tokenize(text, SqlRules.SPARK)
        closings = match_brackets(tokens)
        index = 0
        while index < len(tokens):
            run = read_dotted_name(tokens, index)
            after = index + max(2 * len(run) - 1, 1)
            is_of_target = len(run) < 2 or quote_name_token(run[-2]).lower() == change.alias.lower()
            if tokens[index].unquoted == "(" and tokens[after].unquoted in _QUERY_WORDS:
                after = closings.get(index, index) + 1
            elif _is_window(tokens, index):
                # It would see all rows of the relation, not those that the statement chooses.
                raise _make_error(
                    "A window function in an expression of DELETE, UPDATE or MERGE: compute it in a nested query, or "
                    "in the source of a MERGE"
                )
            elif len(run) == 1 and tokens[after].unquoted == "(" and run[0].unquoted in _GENERATORS:
                raise _make_error(
                    f"{run[0].source_text} returns several rows, which an expression of DELETE, UPDATE or MERGE cannot "
                    "use: call it in a nested query, or in the source of a MERGE"
                )
            elif _is_star(tokens, index, after, change.alias):
                raise _make_error(
                    "* in an expression of DELETE, UPDATE or MERGE: write the columns of the table"
                )
            elif run and is_of_target and tokens[after].unquoted != "(" and run[-1].text in renamed:
                name = to_display_name(run[-1].text)
                raise _make_error(
                    f"{run[-1].source_text} may be {name} or a column whose name differs only in case: write "
                    f"{quote_identifier(renamed[run[-1].text])} for {name}, as queries do"
                )
            index = after


def _unqualify(change: RowChange, query: str) -> str:
    """Return a query in which `demo.public.t.c` and `public.t.c` are `t.c`, for columns of the table."""
    table = change.table
    names = [part.lower() for part in (table.database, table.schema, table.table)]
    if change.alias.lower() != quote_identifier(names[-1]):
        return query
    tokens = tokenize(query, SqlRules.SPARK)
    pieces: list[str] = []
    index = done = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        parts = [token.text.lower() for token in run]
        for count in (2, 3):
            if len(run) > count and parts != names and parts[:count] == names[-count:]:
                pieces += [query[done : run[0].start_offset], change.alias]
                done = run[count - 1].end_offset
                break
        index += max(2 * len(run) - 1, 1)
    return "".join((*pieces, query[done:]))


def _is_star(tokens: Sequence[SqlToken], index: int, after: int, alias: str) -> bool:
    """Return True if a `*` at `index`, or after a qualifier, stands for columns of the table."""
    before = [token.unquoted for token in tokens[max(index - 2, 0) : index]]
    if tokens[index].unquoted == "*":
        return before[-1:] in (["("], [","]) and before != ["COUNT", "("]
    if tokens[index].kind not in NAME_KINDS or tokens[after].unquoted != ".":
        return False
    return (
        tokens[after + 1].unquoted == "*"
        and quote_name_token(tokens[after - 1]).lower() == alias.lower()
    )


def _is_window(tokens: Sequence[SqlToken], index: int) -> bool:
    """Return True if the token at `index` is the OVER of a window function."""
    if tokens[index].unquoted != "OVER" or not index:
        return False
    following = tokens[index + 1]
    return tokens[index - 1].unquoted in (")", "NULLS") and (
        following.unquoted == "(" or following.kind in NAME_KINDS
    )


_AGGREGATE_CONDITIONS = frozenset({"MISSING_GROUP_BY", "MISSING_AGGREGATION"})
_GENERATORS = frozenset(
    [
        "EXPLODE",
        "EXPLODE_OUTER",
        "POSEXPLODE",
        "POSEXPLODE_OUTER",
        "INLINE",
        "INLINE_OUTER",
        "STACK",
        "JSON_TUPLE",
    ]
)
_QUERY_WORDS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_MAX_MIGRATION_WAIT_S = 60.0
_POLL_INTERVAL_S = 0.2


def _rewrite_task(plan: RewritePlan, changes: pa.Table) -> pa.Table:
    outcome = pickle.dumps(rewrite_file(plan, changes))
    return pa.table({"outcome": pa.array([outcome], pa.binary())})


def _insert_task(
    plans: Sequence[WritePlan], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of each action by its plan. The first column of the batches is the action."""
    writers = [NativeRowWriter(plan) for plan in plans]
    try:
        for batch in batches:
            for action, writer in enumerate(writers):
                writer.add(batch.filter(pc.equal(batch.column(0), action)))
        outcome = pickle.dumps([writer.finish() for writer in writers])
    finally:
        for writer in writers:
            writer.abort_current_file()
    failpoints.hit_failpoint(Failpoint.LOAD_TASK)
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])
