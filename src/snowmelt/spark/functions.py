"""External functions in a Spark session: names in queries become calls of Python functions.

A definition is read from the catalog for each query and is part of the private name under which
its Python function is registered, so that whatever is changed counts from the next query on.
Calls are written out in the query itself; `attach` makes temporary functions of the session over
them, for queries that do not come this way.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import threading
import uuid
import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import dumps
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf

from snowmelt import tracing
from snowmelt.catalog.calls import callable_functions
from snowmelt.catalog.external_functions import FunctionName, find_function, functions_of, may_use
from snowmelt.catalog.tables import schema_of
from snowmelt.errors import NotFound
from snowmelt.functions.calling.plan import CallerOptions, CallPlan
from snowmelt.functions.definition import Volatility
from snowmelt.spark import function_types as types
from snowmelt.spark.function_arguments import bound, overload
from snowmelt.spark.function_calls import Given, find_calls, rewrite_calls
from snowmelt.spark.function_context import Asker, context_of
from snowmelt.spark.function_hosts import hosts_of
from snowmelt.spark.function_spool import Spool
from snowmelt.spark.function_workers import INSTANTS, Use, serving
from snowmelt.spark.visible import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession
    from sqlalchemy import Connection

    from snowmelt.catalog.calls import CallableFunction
    from snowmelt.catalog.database import Database
    from snowmelt.spark.function_calls import Call, Calls

# Catalogs that every Spark session has.
_SPARK_CATALOGS = frozenset({"SPARK_CATALOG", "SYSTEM", "SESSION"})
_TRY = "TRY_"
_FULL = 3
# Names of Python functions that a session keeps for queries; a plan holds what it uses by itself.
_MOST_REGISTERED = 256
_BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
_BUFFER_BYTES = 256


@dataclass(frozen=True, slots=True)
class Registered:
    """A Python function of the session: what it calls, and how."""

    private_name: str
    called: CallableFunction
    use: Use

    @property
    def shown(self) -> str:
        """The name by which users know it."""
        name = str(self.called.name)
        if not self.use.trying:
            return name
        front, _, last = name.rpartition(".")
        return f"{front}.{_TRY.lower()}{last}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as it came, and as Spark is to see it."""

    original: str
    text: str
    used: tuple[Registered, ...] = ()


class Functions:
    """The functions that a role may call, in one Spark session; thread-safe."""

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
        self._guarded = False
        self._registered: OrderedDict[str, Registered] = OrderedDict()
        self._attached: dict[str, Registered] = {}
        self._lock = threading.Lock()

    def rewritten(
        self, text: str, within: tuple[str, ...] = (), *, dry_run: str | None = None
    ) -> Asked:
        """Return a query in which calls of external functions are calls that Spark understands.

        Args:
            text: The query.
            within: Internal names of database and schema of functions that are named in short.
            dry_run: Nothing is sent; what would be is written down in this folder.

        Raises:
            NotFound: A function named in full does not exist, or the role may not use it.
            CallMalformed: Arguments do not fit.
        """
        calls = find_calls(text)
        known = self._known(calls, within) if calls.found else {}
        if not known:
            return Asked(text, text)
        asker = self._asker(within, text)
        used: dict[str, Registered] = {}
        sites = itertools.count()

        def render(call: Call, given: Sequence[Given]) -> str:
            found, trying = known[call.start]
            called = overload(found, given)
            places = bound(called, given)
            site = self._site_of_text(called, text, sites)
            registered = self._register(called, asker, trying=trying, dry_run=dry_run, site=site)
            used[registered.private_name] = registered
            arguments = called.function.signature.arguments
            return _expression(
                registered,
                [
                    types.argument(declared.type, each.text if each else declared.default or "NULL")
                    for declared, each in zip(arguments, places, strict=True)
                ],
            )

        chosen = {call.start: call for call in calls.found if call.start in known}
        return Asked(text, rewrite_calls(calls, chosen, render), tuple(used.values()))

    def attach(self, database: str, schema: str) -> list[str]:
        """Make temporary functions of the session of all functions of a schema that may be used.

        Each has its own short name and one with `try_` before it. Of several functions of a name,
        each has the number of its arguments behind its name. They are as they are now.

        Raises:
            NotFound: There is no such schema, or a function needs something that is gone.
        """
        asker = self._asker((database, schema))
        attached = []
        for name in self._usable(database, schema):
            with self._database.reading() as connection:
                found = callable_functions(connection, self._role, name)
            for called in found:
                arity = len(called.function.signature.arguments)
                short = name.function if len(found) == 1 else f"{name.function}_{arity}"
                for trying in (False, True):
                    shown = (_TRY + short if trying else short).lower()
                    self._attach(shown, called, asker, trying=trying)
                    attached.append(shown)
        return attached

    def column(self, name: FunctionName, *, trying: bool = False) -> Callable[..., Column]:
        """Return what makes a Column of Columns, constants and arguments by name.

        Raises:
            NotFound: The function does not exist, or the role may not use it.
        """
        with self._database.reading() as connection:
            found = callable_functions(connection, self._role, name)
        asker = self._asker((name.database, name.schema))

        def called_with(*columns: object, **named: object) -> Column:
            values = [*columns, *named.values()]
            names = [*(None for _ in columns), *named]
            given = [Given(str(at), name) for at, name in enumerate(names)]
            called = overload(found, given)
            places = bound(called, given)
            site = _site_of_program(called, sys._getframe(1))  # noqa: SLF001 - the caller's line
            registered = self._register(called, asker, trying=trying, site=site)
            wrapper = f"{registered.private_name}_columns"
            self._wrap(wrapper, called, registered)
            arguments = called.function.signature.arguments
            return sf.call_function(
                wrapper,
                *(
                    sf.expr(argument.default or "NULL")
                    if each is None
                    else _column(values[int(each.text)])
                    for argument, each in zip(arguments, places, strict=True)
                ),
            ).alias(name.function.lower())

        return called_with

    def shown(self, message: str) -> str:
        """Return a message of Spark's with the names that users know."""
        with self._lock:
            known = [*self._registered.values(), *self._attached.values()]
        for each in known:
            message = message.replace(each.private_name, each.shown)
        return message

    def guard(self) -> None:
        """Set what makes calls cheap, and warn of what makes them dear; once per session."""
        if self._guarded:
            return
        self._guarded = True
        if int(self._spark.conf.get(_BUFFER) or 0) > _BUFFER_BYTES:
            # Values wait until so many bytes of them are there: a LIMIT calls for too many rows.
            self._spark.conf.set(_BUFFER, str(_BUFFER_BYTES))

    def _known(
        self, calls: Calls, within: tuple[str, ...]
    ) -> dict[int, tuple[list[CallableFunction], bool]]:
        """Return the overloads of each call that is one of ours, and whether it is tried."""
        known = {}
        with self._database.reading() as connection:
            for call in calls.found:
                names = _full_names(call.parts, within)
                found = self._overloads(connection, names)
                if found is not None:
                    known[call.start] = found
                elif len(call.parts) == _FULL and not is_foreign(self._spark, call.parts[0]):
                    name = FunctionName(*call.parts)
                    raise NotFound(
                        f"Function {name} does not exist, or this role may not use it.",
                        kind="Function",
                        name=str(name),
                    )
        return known

    def _overloads(
        self, connection: Connection, names: Iterable[tuple[FunctionName, bool]]
    ) -> tuple[list[CallableFunction], bool] | None:
        for name, trying in names:
            parts = (name.database, name.schema, name.function)
            if find_function(connection, self._role, *parts):
                return callable_functions(connection, self._role, name), trying
        return None

    def _usable(self, database: str, schema: str) -> list[FunctionName]:
        with self._database.reading() as connection:
            schema_of(connection, database, schema)
            there = functions_of(connection, database, schema)
            return sorted({each.name for each in there if may_use(connection, self._role, each)})

    def _asker(self, within: tuple[str, ...], statement: str = "") -> Asker:
        return Asker(self._role, self._current_user(), self._session, within, statement)

    def _current_user(self) -> str:
        if self._user is None:
            self._user = str(self._spark.sql("SELECT current_user()").collect()[0][0])
        return self._user

    def _plan(self, called: CallableFunction, asker: Asker) -> CallPlan:
        return CallPlan(
            function=called.function,
            integration=called.integration,
            zone=str(self._spark.conf.get("spark.sql.session.timeZone")),
            context=context_of(
                (name for name in called.function.context_headers if name not in INSTANTS), asker
            ),
            options=self._shared(called),
            request_translator=called.request_translator,
            response_translator=called.response_translator,
            traceparent=tracing.header().get(tracing.HEADER),
        )

    def _site_of_text(self, called: CallableFunction, text: str, sites: Iterator[int]) -> str:
        """Return what tells a call apart from the others of its statement.

        All statements of a streaming query's `foreachBatch` have the same query id, which lasts
        over restarts; there the statement itself is part of the site.
        """
        if called.function.volatility is not Volatility.VOLATILE:
            return ""
        number = next(sites)
        if self._is_in_streaming_batch():
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            return f"{digest} {number}"
        return str(number) if number else ""

    def _is_in_streaming_batch(self) -> bool:
        try:
            return self._spark.sparkContext.getLocalProperty("sql.streaming.queryId") is not None
        except Exception:  # noqa: BLE001  Spark Connect has no context, and says so in several ways
            return False

    def _shared(self, called: CallableFunction) -> CallerOptions:
        """Return the options, with a rate or a budget shared among the machines there are now."""
        options = self._options
        limits = (
            called.function.rate_limit,
            options.max_rows_per_query,
            options.max_calls_per_query,
        )
        if all(limit is None for limit in limits) or options.executors > 1:
            return options
        return replace(options, executors=hosts_of(self._spark))

    def _register(
        self,
        called: CallableFunction,
        asker: Asker,
        *,
        trying: bool,
        lasting: bool = False,
        dry_run: str | None = None,
        site: str = "",
    ) -> Registered:
        self.guard()
        self._warn_of_speculation(called)
        plan = self._plan(called, asker)
        if lasting:
            plan = replace(plan, traceparent=None)  # it outlives the span
        spool = Spool(self._store_url, str(called.name))
        if dry_run is not None:
            plan = replace(plan, options=replace(plan.options, dry_run=True))
            spool = replace(spool, folder=dry_run)
        use = Use(plan, trying, self._session, spool, site)
        digest = hashlib.sha256(_pickled(use)).hexdigest()[:16]
        private = f"snowmelt_{_plain(called.name.function)}_{digest}"
        with self._lock:
            if private in self._registered:
                self._registered.move_to_end(private)
                return self._registered[private]
            registered = Registered(private, called, use)
            self._spark.udf.register(private, _python_function(use))
            self._registered[private] = registered
            while len(self._registered) > _MOST_REGISTERED:
                oldest, _ = self._registered.popitem(last=False)
                if oldest not in self._attached:
                    self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {oldest}")
        return registered

    def _attach(self, shown: str, called: CallableFunction, asker: Asker, *, trying: bool) -> None:
        registered = self._register(called, asker, trying=trying, lasting=True)
        with self._lock:
            self._attached[registered.private_name] = registered
        self._wrap(shown, called, registered)

    def _wrap(self, name: str, called: CallableFunction, registered: Registered) -> None:
        """Make a temporary SQL function over a Python function."""
        signature = called.function.signature
        listed = ", ".join(
            f"{quoted(each.name.lower())} {types.visible_type(each.type)}"
            + (f" DEFAULT {each.default}" if each.default is not None else "")
            for each in signature.arguments
        )
        raw = [
            types.argument(each.type, quoted(each.name.lower()), visible=True)
            for each in signature.arguments
        ]
        returns = signature.returns
        shown_type = (
            types.visible_trying_type(returns)
            if registered.use.trying
            else types.visible_type(returns)
        )
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {quoted(name)}({listed})"
            f" RETURNS {shown_type} RETURN {_expression(registered, raw)}"
        )

    def _warn_of_speculation(self, called: CallableFunction) -> None:
        if called.function.volatility is not Volatility.VOLATILE:
            return
        if str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            warnings.warn(
                f"spark.speculation is on: Spark may call {called.name}, which is VOLATILE, twice "
                "for the same rows; a service that knows batches by their ids works once.",
                stacklevel=5,
            )


def is_foreign(spark: SparkSession, catalog: str) -> bool:
    """Tell whether a name begins with a catalog that Spark has."""
    if catalog.upper() in _SPARK_CATALOGS:
        return True
    return any(
        spark.conf.get(f"spark.sql.catalog.{name}", None) is not None
        for name in (catalog, catalog.lower())
    )


def _full_names(
    parts: tuple[str, ...], within: tuple[str, ...]
) -> Iterable[tuple[FunctionName, bool]]:
    """Yield the functions that a name may mean, and whether it asks to try them."""
    missing = _FULL - len(parts)
    if missing > len(within):
        return
    name = FunctionName(*within[:missing], *parts)
    yield name, False
    if name.function.upper().startswith(_TRY):
        yield replace(name, function=name.function[len(_TRY) :]), True


def _expression(registered: Registered, raw: Sequence[str]) -> str:
    use = registered.use
    returns = use.plan.function.signature.returns
    columns = list(raw)
    if use.needs_column:
        columns.append("current_timestamp()" if use.instants else "true")
    call = f"{registered.private_name}({', '.join(columns)})"
    return types.tried_value(returns, call) if use.trying else types.value(returns, call)


def _python_function(use: Use) -> Any:
    returns = use.plan.function.signature.returns
    returned = types.trying_type(returns) if use.trying else types.raw_type(returns)
    # It knows the kind by the hints, and warns of whoever says it.
    make: Any = arrow_udf
    made = make(serving(use), returned)
    is_volatile = use.plan.function.volatility is Volatility.VOLATILE
    return made.asNondeterministic() if is_volatile else made


def _pickled(use: Use) -> bytes:
    pickled: bytes = dumps(use)  # type: ignore[no-untyped-call]
    return pickled


def _site_of_program(called: CallableFunction, frame: FrameType) -> str:
    """Return where a program makes a column, in a form that lines added elsewhere do not change.

    It is the same when the program runs again, as a streaming query from its checkpoint does.
    """
    if called.function.volatility is not Volatility.VOLATILE:
        return ""
    spoken = f"{frame.f_code.co_qualname} {frame.f_lasti}"
    return hashlib.sha256(spoken.encode()).hexdigest()[:16]


def _plain(name: str) -> str:
    kept = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in name)
    return kept.lower()


def _column(value: object) -> Column:
    """Take a text for the name of a column, as PySpark does."""
    if isinstance(value, Column):
        return value
    return sf.col(value) if isinstance(value, str) else sf.lit(value)
