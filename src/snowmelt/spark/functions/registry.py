"""Registers external functions in a Spark session, and builds their SQL types and expressions.

Each query reads function definitions from the catalog. A Python function is registered under a
private name that includes a digest of the definition, so a change applies to the next query. Calls
are rewritten in the query text. `attach_schema` creates temporary functions of the session for
queries that do not pass through `Snowmelt.sql`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import threading
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import FrameType
from typing import Any

import msgspec
from pyspark.cloudpickle import dumps
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf

from snowmelt import tracing
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.external_functions import (
    CallableFunction,
    FunctionName,
    can_use_function,
    display_overload,
    list_callable_functions,
    list_external_functions,
    list_usable_functions,
)
from snowmelt.catalog.objects.name_suggestions import (
    raise_function_not_found,
    suggesting_names,
)
from snowmelt.catalog.objects.tables import find_namespace_ids, find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.functions.caller.plan import CallerOptions, CallPlan
from snowmelt.functions.definition import Volatility
from snowmelt.functions.signature import MAX_PRECISION, SqlType
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, LogicalType, to_display_name
from snowmelt.spark.functions.call_log import CallLogFiles
from snowmelt.spark.functions.call_rewriter import (
    CallArgument,
    FunctionCall,
    StatementCalls,
    bind_arguments,
    find_calls,
    list_candidate_names,
    rewrite_calls,
    select_overload,
)
from snowmelt.spark.functions.copy_history import HistoryCall
from snowmelt.spark.functions.worker import TIME_HEADERS, FunctionUse, make_udf
from snowmelt.spark.tables.spark_column_mapping import quote_identifier


@dataclass(frozen=True, slots=True)
class CallerContext:
    """Role, user and session of a query, its namespace for short names, and its text if any."""

    role: str
    user: str
    session: str
    namespace: tuple[str, ...] = ()
    statement: str = ""


def make_context_headers(names: Iterable[str], caller: CallerContext) -> dict[str, str]:
    """Return the values of context headers. Headers without a value in Snowmelt are empty.

    Headers without a value are region, warehouse, address and transaction. Headers with times are
    added later, because times are unknown before Spark runs the query (`worker.TIME_HEADERS`).
    """
    database, schema = caller.namespace or ("", "")
    here = [f"{to_display_name(database)}.{to_display_name(schema)}"] if caller.namespace else []
    values = {
        "CURRENT_ACCOUNT": "SNOWMELT",
        "CURRENT_ACCOUNT_NAME": "SNOWMELT",
        "CURRENT_CLIENT": f"snowmelt {version('snowmelt')}",
        "CURRENT_DATABASE": database,
        "CURRENT_ROLE": caller.role,
        "CURRENT_SCHEMA": schema,
        "CURRENT_SCHEMAS": msgspec.json.encode(here).decode(),
        "CURRENT_SESSION": caller.session,
        "CURRENT_STATEMENT": caller.statement,
        "CURRENT_USER": caller.user,
        "CURRENT_VERSION": version("snowmelt"),
    }
    return {name: values.get(name, "") for name in names}


# Catalogs that exist in every Spark session.
_SPARK_CATALOGS = frozenset({"SPARK_CATALOG", "SYSTEM", "SESSION"})
_TRY_PREFIX = "TRY_"
_FULL_NAME_PARTS = 3
# Maximum number of Python functions that stay registered per session. Query plans keep references
# to the functions that they call.
_MAX_REGISTERED_FUNCTIONS = 256
_BUFFER_SIZE_SETTING = "spark.sql.execution.pandas.udf.buffer.size"
_BUFFER_BYTES = 256


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """Python function that is registered in the session: private name, definition and use."""

    private_name: str
    definition: CallableFunction
    use: FunctionUse

    @property
    def public_name(self) -> str:
        """Name in user queries."""
        name = str(self.definition.name)
        if not self.use.trying:
            return name
        front, _, last = name.rpartition(".")
        return f"{front}.{_TRY_PREFIX.lower()}{last}"


@dataclass(frozen=True, slots=True)
class _SessionFunction:
    """Function of the session's own SQL, whose names are not case-sensitive."""

    definition: CallableFunction
    trying: bool
    is_overload: bool

    def __str__(self) -> str:
        signature = self.definition.function.signature
        types = [each.type for each in signature.arguments]
        shown = display_overload(self.definition.name, types)
        return f"the try_ variant of {shown}" if self.trying else shown

    @property
    def shown(self) -> str:
        """Name in the session."""
        short = self.definition.name.function
        if self.is_overload:
            short = f"{short}_{len(self.definition.function.signature.arguments)}"
        return (_TRY_PREFIX + short if self.trying else short).lower()

    @property
    def rank(self) -> tuple[bool, bool, bool]:
        """Rank among functions of one name: the lowest is the one that `Snowmelt.sql` calls."""
        name = self.definition.name.function
        return self.trying, self.is_overload, name != name.upper()


@dataclass(frozen=True, slots=True)
class RewrittenQuery:
    """Original text of a query, and rewritten text for Spark."""

    original: str
    text: str
    functions: tuple[RegisteredFunction, ...] = ()


class SparkFunctions:
    """External functions that a role may call in one Spark session. Thread-safe."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        *,
        role: str,
        store_url: str,
        options: CallerOptions,
    ) -> None:
        self._spark = spark
        self._database = database
        self._role = role
        self._store_url = store_url
        self._options = options
        self._session = str(uuid.uuid4())
        self._user: str | None = None
        self._is_prepared = False
        self._registered_functions: OrderedDict[str, RegisteredFunction] = OrderedDict()
        self._attached_functions: dict[str, RegisteredFunction] = {}
        self._lock = threading.Lock()

    def rewrite_query(
        self, text: str, namespace: tuple[str, ...] = (), *, dry_run: str | None = None
    ) -> RewrittenQuery:
        """Replace calls of external functions in a query with calls of registered Python functions.

        Calls of COPY_HISTORY become queries of the view COPY_HISTORY.

        Args:
            text: The query.
            namespace: Database and schema of short function names, as internal names.
            dry_run: Folder for the records of a dry run, which calls no services. None: call
                services.

        Raises:
            NotFound: If a function with a full name, or the table of COPY_HISTORY, does not exist or the
                role lacks privileges on it.
            CallMalformed: If the arguments do not match.
            StatementError: If a string, quoted name or comment is not closed, or an argument of
                COPY_HISTORY is missing or unknown.
        """
        calls = find_calls(text)
        known = self._resolve_calls(calls, namespace) if calls.calls else {}
        if not known and not calls.history_calls:
            return RewrittenQuery(text, text)
        asker = self._make_caller_context(namespace, text) if known else None
        used: dict[str, RegisteredFunction] = {}
        sites = itertools.count()

        def render(call: FunctionCall, given: Sequence[CallArgument]) -> str:
            if asker is None or call.start not in known:
                return self._render_history(calls, call, given, namespace)
            found, trying = known[call.start]
            called = select_overload(found, given)
            places = bind_arguments(called, given)
            site = self._make_statement_site(called, text, sites)
            registered = self._register_function(
                called, asker, trying=trying, dry_run=dry_run, site=site
            )
            used[registered.private_name] = registered
            arguments = called.function.signature.arguments
            return _build_call_expression(
                registered,
                [
                    build_argument_sql(
                        declared.type, each.text if each else declared.default or "NULL"
                    )
                    for declared, each in zip(arguments, places, strict=True)
                ],
            )

        chosen = {
            call.start: call
            for call in (*calls.calls, *calls.history_calls)
            if call.start in known or call in calls.history_calls
        }
        return RewrittenQuery(text, rewrite_calls(calls, chosen, render), tuple(used.values()))

    def _render_history(
        self,
        calls: StatementCalls,
        call: FunctionCall,
        given: Sequence[CallArgument],
        namespace: Sequence[str],
    ) -> str:
        history = HistoryCall(call, given, calls.tokens[call.start], namespace)
        with self._database.reading() as connection:
            table = find_table(connection, history.table)
            require_table_privilege(connection, self._role, table, "SELECT")
        return history.build_query()

    def attach_schema(self, database: str, schema: str) -> list[str]:
        """Create temporary functions in the session for all usable functions of a schema.

        Each function gets its short name and a variant with the prefix `try_`. Overloads of one name get
        the number of their arguments as suffix. If several have the same name in Spark, the function that
        `rewrite_query` would call gets it, with a warning. Later changes in the catalog do not affect them.

        Raises:
            NotFound: If the schema, or an object that a function needs, does not exist.
        """
        asker = self._make_caller_context((database, schema))
        with self._database.reading() as connection:
            find_namespace_ids(connection, database, schema)
            there = list_external_functions(connection, database, schema)
            usable = {each.name for each in there if can_use_function(connection, self._role, each)}
        wrappers: list[_SessionFunction] = []
        for name in sorted(usable):
            with self._database.reading() as connection:
                found = list_callable_functions(connection, self._role, name)
            wrappers += (
                _SessionFunction(called, trying, is_overload=len(found) > 1)
                for called in found
                for trying in (False, True)
            )
        owners: dict[str, _SessionFunction] = {}
        for each in sorted(wrappers, key=lambda wrapper: wrapper.rank):
            owner = owners.setdefault(each.shown, each)
            if owner is not each:
                warnings.warn(
                    f"{each} is not attached, because {each.shown} is {owner}", stacklevel=3
                )
        attached = []
        for each in wrappers:
            if owners[each.shown] is not each:
                continue
            registered = self._register_function(
                each.definition, asker, trying=each.trying, is_attached=True
            )
            with self._lock:
                self._attached_functions[registered.private_name] = registered
            self._create_sql_wrapper(each.shown, each.definition, registered)
            attached.append(each.shown)
        return attached

    def make_column_function(
        self, name: FunctionName, *, trying: bool = False
    ) -> Callable[..., Column]:
        """Return a function that creates a Column from Columns, constants and keyword arguments.

        Raises:
            NotFound: If the function does not exist or the role lacks privileges on it.
        """
        with (
            self._database.reading() as connection,
            suggesting_names(connection, self._role, name),
        ):
            found = list_callable_functions(connection, self._role, name)
        asker = self._make_caller_context((name.database, name.schema))

        def called_with(*columns: object, **named: object) -> Column:
            values = [*columns, *named.values()]
            names = [*(None for _ in columns), *named]
            given = [CallArgument(str(at), name) for at, name in enumerate(names)]
            called = select_overload(found, given)
            places = bind_arguments(called, given)
            site = _make_program_site(called, sys._getframe(1))  # noqa: SLF001 - the caller's frame
            registered = self._register_function(called, asker, trying=trying, site=site)
            wrapper = f"{registered.private_name}_columns"
            self._create_sql_wrapper(wrapper, called, registered)
            arguments = called.function.signature.arguments
            return sf.call_function(
                wrapper,
                *(
                    sf.expr(argument.default or "NULL")
                    if each is None
                    else _to_column(values[int(each.text)])
                    for argument, each in zip(arguments, places, strict=True)
                ),
            ).alias(name.function.lower())

        return called_with

    def restore_public_names(self, message: str) -> str:
        """Replace private function names in a Spark message with public names."""
        with self._lock:
            known = [*self._registered_functions.values(), *self._attached_functions.values()]
        for each in known:
            message = message.replace(each.private_name, each.public_name)
        return message

    def _resolve_calls(
        self, calls: StatementCalls, namespace: tuple[str, ...]
    ) -> dict[int, tuple[list[CallableFunction], bool]]:
        """Return the overloads of each external function call, and True for a `try_` call."""
        known = {}
        with self._database.reading() as connection:
            for call in calls.calls:
                for name, trying in list_candidate_names(call.parts, namespace):
                    parts = (name.database, name.schema, name.function)
                    if list_usable_functions(connection, self._role, *parts):
                        found = list_callable_functions(connection, self._role, name)
                        known[call.start] = (found, trying)
                        break
                if (
                    call.start not in known
                    and len(call.parts) == _FULL_NAME_PARTS
                    and not is_spark_catalog_name(self._spark, call.parts[0])
                ):
                    raise_function_not_found(connection, self._role, FunctionName(*call.parts))
        return known

    def _make_caller_context(
        self, namespace: tuple[str, ...], statement: str = ""
    ) -> CallerContext:
        if self._user is None:
            self._user = str(self._spark.sql("SELECT current_user()").collect()[0][0])
        return CallerContext(self._role, self._user, self._session, namespace, statement)

    def _make_call_plan(self, definition: CallableFunction, caller: CallerContext) -> CallPlan:
        options = self._options
        limits = (
            definition.function.rate_limit,
            options.max_rows_per_query,
            options.max_calls_per_query,
        )
        if options.executors <= 1 and any(limit is not None for limit in limits):
            # Divide the limits by the current number of hosts.
            options = replace(options, executors=count_executor_hosts(self._spark))
        return CallPlan(
            function=definition.function,
            integration=definition.integration,
            zone=str(self._spark.conf.get("spark.sql.session.timeZone")),
            context=make_context_headers(
                (name for name in definition.function.context_headers if name not in TIME_HEADERS),
                caller,
            ),
            options=options,
            request_translator=definition.request_translator,
            response_translator=definition.response_translator,
            traceparent=tracing.make_traceparent_header().get(tracing.TRACEPARENT_HEADER),
        )

    def _make_statement_site(
        self, definition: CallableFunction, text: str, sites: Iterator[int]
    ) -> str:
        """Return an identifier of a call that is unique within its statement.

        All statements of a streaming query's `foreachBatch` have the same query ID, which is stable across
        restarts. Their identifiers therefore include a hash of the statement.
        """
        if definition.function.volatility is not Volatility.VOLATILE:
            return ""
        number = next(sites)
        try:
            query = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        except Exception:  # noqa: BLE001  Spark Connect has no context and raises various errors
            query = None
        if query is not None:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            return f"{digest} {number}"
        return str(number) if number else ""

    def _register_function(
        self,
        definition: CallableFunction,
        caller: CallerContext,
        *,
        trying: bool,
        is_attached: bool = False,
        dry_run: str | None = None,
        site: str = "",
    ) -> RegisteredFunction:
        self._prepare_session()
        volatile = definition.function.volatility is Volatility.VOLATILE
        if volatile and str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            warnings.warn(
                f"spark.speculation is on: Spark may call {definition.name}, which is VOLATILE, twice "
                "for the same rows. Make the service detect repeated batch IDs, or disable speculation.",
                stacklevel=4,
            )
        plan = self._make_call_plan(definition, caller)
        if is_attached:
            plan = replace(plan, traceparent=None)  # An attached function outlives the span.
        spool = CallLogFiles(self._store_url, str(definition.name))
        if dry_run is not None:
            plan = replace(plan, options=replace(plan.options, dry_run=True))
            spool = replace(spool, folder=dry_run)
        use = FunctionUse(plan, trying, self._session, spool, site)
        pickled: bytes = dumps(use)  # type: ignore[no-untyped-call]
        digest = hashlib.sha256(pickled).hexdigest()[:16]
        readable = re.sub("[^A-Za-z0-9]", "_", definition.name.function).lower()
        private = f"snowmelt_{readable}_{digest}"
        with self._lock:
            if private in self._registered_functions:
                self._registered_functions.move_to_end(private)
                return self._registered_functions[private]
            registered = RegisteredFunction(private, definition, use)
            self._spark.udf.register(private, _make_python_udf(use))
            self._registered_functions[private] = registered
            while len(self._registered_functions) > _MAX_REGISTERED_FUNCTIONS:
                oldest, _ = self._registered_functions.popitem(last=False)
                if oldest not in self._attached_functions:
                    self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {oldest}")
        return registered

    def _create_sql_wrapper(
        self, name: str, definition: CallableFunction, registered: RegisteredFunction
    ) -> None:
        """Create a temporary SQL function that calls a Python function."""
        signature = definition.function.signature
        listed = ", ".join(
            f"{quote_identifier(each.name.lower())} {to_visible_type(each.type)}"
            + (f" DEFAULT {each.default}" if each.default is not None else "")
            for each in signature.arguments
        )
        raw = [
            build_argument_sql(each.type, quote_identifier(each.name.lower()), is_visible=True)
            for each in signature.arguments
        ]
        returns = signature.returns
        shown_type = to_visible_type(returns)
        if registered.use.trying:
            shown_type = _TRY_TYPE.format(shown_type)
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {quote_identifier(name)}({listed})"
            f" RETURNS {shown_type} RETURN {_build_call_expression(registered, raw)}"
        )

    def _prepare_session(self) -> None:
        """Set the buffer size of Python functions, once per session."""
        if self._is_prepared:
            return
        self._is_prepared = True
        if int(self._spark.conf.get(_BUFFER_SIZE_SETTING) or 0) > _BUFFER_BYTES:
            # Spark reads this many bytes of results ahead, so with LIMIT a large buffer causes more
            # calls.
            self._spark.conf.set(_BUFFER_SIZE_SETTING, str(_BUFFER_BYTES))


def is_spark_catalog_name(spark: SparkSession, catalog: str) -> bool:
    """Return True if `catalog` is a catalog of Spark."""
    if catalog.upper() in _SPARK_CATALOGS:
        return True
    return any(
        spark.conf.get(f"spark.sql.catalog.{name}", None) is not None
        for name in (catalog, catalog.lower())
    )


def _build_call_expression(registered: RegisteredFunction, raw_arguments: Sequence[str]) -> str:
    use = registered.use
    returns = use.plan.function.signature.returns
    columns = list(raw_arguments)
    if use.needs_extra_column:
        columns.append("current_timestamp()" if use.time_headers else "true")
    call = f"{registered.private_name}({', '.join(columns)})"
    return build_try_value_sql(returns, call) if use.trying else build_value_sql(returns, call)


def _make_python_udf(use: FunctionUse) -> Any:
    returns = use.plan.function.signature.returns
    returned = to_raw_type(returns)
    if use.trying:
        returned = _TRY_TYPE.format(returned)
    # `arrow_udf` derives the kind from type hints and warns if it is passed.
    make: Any = arrow_udf
    made = make(make_udf(use), returned)
    is_volatile = use.plan.function.volatility is Volatility.VOLATILE
    return made.asNondeterministic() if is_volatile else made


def _make_program_site(definition: CallableFunction, frame: FrameType) -> str:
    """Return an identifier of the code that creates a column. Empty if it is not needed.

    Only calls of VOLATILE functions need one. The identifier stays the same when the program runs
    again, for example for a streaming query with a checkpoint. Changes of other Python functions do
    not change it.
    """
    if definition.function.volatility is not Volatility.VOLATILE:
        return ""
    spoken = f"{frame.f_code.co_qualname} {frame.f_lasti}"
    return hashlib.sha256(spoken.encode()).hexdigest()[:16]


def _to_column(value: object) -> Column:
    """Convert a value to a Column. A string is a column name, as in PySpark."""
    if isinstance(value, Column):
        return value
    return sf.col(value) if isinstance(value, str) else sf.lit(value)


def count_executor_hosts(spark: SparkSession) -> int:
    """Return the number of hosts that run executors, or 1 with Spark Connect."""
    try:
        # There is no public API. `SparkEnv` would also identify the driver, but its methods cannot
        # be looked up, because it refers to a class that is not in Spark's jars.
        store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
        listed = store.executorList(True).iterator()
        places = {}
        while listed.hasNext():
            each = listed.next()
            places[str(each.id())] = str(each.hostPort()).rpartition(":")[0]
    except Exception:  # noqa: BLE001  Spark Connect has no context and raises various errors
        return 1
    # The list includes the driver, which in local mode is the only entry.
    return len({host for name, host in places.items() if name != "driver"}) or 1


# Conversions are SQL expressions, which the JVM runs: converting a VARIANT to a Python object takes
# ten times as long as converting it to JSON text. Values have the types of table columns (see
# `docs/explanation/decisions/0010-types-in-spark.md`).

_MAX_BIGINT_DIGITS = 18
# Spark's timestamps have microsecond precision.
_TIME_DIGITS = 6
_SPARK_TYPES = {
    LogicalType.REAL: "DOUBLE",
    LogicalType.BOOLEAN: "BOOLEAN",
    LogicalType.TEXT: "STRING",
    LogicalType.BINARY: "BINARY",
    LogicalType.DATE: "DATE",
    LogicalType.TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    LogicalType.TIMESTAMP_LTZ: "TIMESTAMP",
    LogicalType.TIMESTAMP_TZ: "TIMESTAMP",
    **dict.fromkeys(SEMI_STRUCTURED_TYPES, "STRING"),
}
# Options of `to_json`. Its default omits NULL fields and truncates timestamps to milliseconds.
_TO_JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSSXXX',"
    " 'timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
)
# Name of lambda variables. Unlikely to be the name of a column.
_LAMBDA_VARIABLE = "snowmelt_each"
# Result type of a `try_` call, which reports errors instead of raising them.
_TRY_TYPE = "STRUCT<value: {}, error: STRING, status: INT, batch_id: STRING>"
_ERROR_FIELDS = ("error", "status", "batch_id")


def to_visible_type(sql_type: SqlType) -> str:
    """Return the Spark type of arguments and results in queries."""
    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        return "VARIANT"
    if sql_type.kind is LogicalType.FIXED:
        return f"DECIMAL({sql_type.precision or MAX_PRECISION},{sql_type.scale or 0})"
    if sql_type.kind is LogicalType.TIME:
        digits = _TIME_DIGITS if sql_type.scale is None else sql_type.scale
        return f"TIME({min(digits, _TIME_DIGITS)})"
    return _SPARK_TYPES[sql_type.kind]


def to_raw_type(sql_type: SqlType) -> str:
    """Return the Spark type that the Python function accepts and returns."""
    if sql_type.kind is LogicalType.TIME:
        # Arrow's time type has no precision, so use Spark's highest.
        return f"TIME({_TIME_DIGITS})"
    precision = sql_type.precision or MAX_PRECISION
    if sql_type.is_integer and precision <= _MAX_BIGINT_DIGITS:
        return "BIGINT"
    return _SPARK_TYPES.get(sql_type.kind) or to_visible_type(sql_type)


def build_argument_sql(sql_type: SqlType, expression: str, *, is_visible: bool = False) -> str:
    """Build the SQL that converts an expression to a raw argument.

    A VARIANT accepts any type, including struct and map. OBJECT and ARRAY accept struct, map, array or
    VARIANT.

    Args:
        sql_type: The declared type of the argument.
        expression: The argument in SQL.
        is_visible: True if the expression already has the visible type.
    """
    if sql_type.kind not in SEMI_STRUCTURED_TYPES:
        # The inner cast rejects values with more digits than the declared type.
        narrow = expression if is_visible else f"CAST({expression} AS {to_visible_type(sql_type)})"
        if to_raw_type(sql_type) == to_visible_type(sql_type):
            return narrow
        return f"CAST({narrow} AS {to_raw_type(sql_type)})"
    if is_visible or sql_type.kind is not LogicalType.VARIANT:
        return f"to_json({expression}, {_TO_JSON_OPTIONS})"
    # `to_json` rejects scalars, so wrap the value in an array. Test for NULL, which would become
    # JSON null there.
    boxed = f"transform(array({expression}), {_LAMBDA_VARIABLE} -> if({_LAMBDA_VARIABLE} IS NULL, NULL, to_json(array({_LAMBDA_VARIABLE}), {_TO_JSON_OPTIONS})))"
    return f"transform({boxed}, {_LAMBDA_VARIABLE} -> substring({_LAMBDA_VARIABLE}, 2, length({_LAMBDA_VARIABLE}) - 2))[0]"


def build_value_sql(sql_type: SqlType, expression: str) -> str:
    """Build the SQL that converts the result of a call to its visible type."""
    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        return f"parse_json({expression})"
    if to_raw_type(sql_type) == to_visible_type(sql_type):
        return expression
    return f"CAST({expression} AS {to_visible_type(sql_type)})"


def build_try_value_sql(sql_type: SqlType, expression: str) -> str:
    """Build the SQL that converts the result of a `try_` call to its visible struct."""
    if to_raw_type(sql_type) == to_visible_type(sql_type):
        return expression
    # Bind the call to a lambda variable, because each occurrence of the expression makes a call.
    inner, error = f"{_LAMBDA_VARIABLE}.value", f"{_LAMBDA_VARIABLE}.error"
    shown = build_value_sql(sql_type, inner)
    if sql_type.kind in SEMI_STRUCTURED_TYPES:
        shown = f"try_parse_json({inner})"
        unfit = f"{inner} IS NOT NULL AND {shown} IS NULL"
        error = f"if({unfit}, 'The value is no document that Spark can hold.', {error})"
    fields = [f"'value', {shown}", f"'error', {error}"]
    fields += [f"'{name}', {_LAMBDA_VARIABLE}.{name}" for name in _ERROR_FIELDS[1:]]
    struct = f"named_struct({', '.join(fields)})"
    return f"transform(array({expression}), {_LAMBDA_VARIABLE} -> if({_LAMBDA_VARIABLE} IS NULL, NULL, {struct}))[0]"
