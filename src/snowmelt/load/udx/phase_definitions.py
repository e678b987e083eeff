"""Definitions of user-defined phases, made from SDK factories, classes or functions.

`UdxFactory` calls the factory's `getParameterType`, `plan` and `prepare`. Classes and functions in
Snowmelt's own style take their parameters from their signature.
"""

from __future__ import annotations

import datetime as dt
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.phase_protocols import ParseTarget
from snowmelt.load.task import LoadStep, StepKind
from snowmelt.load.udx import shared_progress_page
from snowmelt.load.udx.filters import UdxFilter, make_generator_filter, make_udx_record_filter
from snowmelt.load.udx.input_window import UdxLimits
from snowmelt.load.udx.instance import (
    PARAMETER_TYPE_ROLES,
    PARSER_PLAN_ROLES,
    PARSER_PREPARE_ROLES,
    PLAN_ROLES,
    PROCESS_ROLES,
    RETURN_TYPE_ROLES,
    SETUP_ROLES,
    UdxHost,
    bind_method,
    describe_user_code_line,
)
from snowmelt.load.udx.parsers import UdxDualParser, UdxParser, UdxRecordParser
from snowmelt.load.udx.shared_progress_page import is_ctrl_c
from snowmelt.load.udx.sources import GeneratorSource, make_udx_source
from snowmelt.load.udx.vertica_sdk.server_interface import (
    PerColumnParamReader,
    PlanContext,
    ServerInterface,
)
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import (
        Filter,
        Parser,
        RecordFilter,
        RecordParser,
        RecordSource,
        Source,
    )
    from snowmelt.load.udx.parsers import Prepare


def make_filter_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Filter | RecordFilter]:
    """Return a filter as something that is built by name.

    `user_object` is a factory with `prepare`; or a class of filters: with `process`, with `run`, or with
    `run_records`; or a generator function of a reader; or a function of bytes.

    Raises:
        LoadRefused: It is none of these.
    """
    if callable(getattr(user_object, "prepare", None)):
        made = _instantiate_factory(display_name, user_object)

        def make(host: UdxHost, context: PlanContext) -> Filter | RecordFilter:
            prepare = bind_method(made, "prepare", PLAN_ROLES)
            return _make_udx_filter(host, lambda: prepare(host.server, context))

        def plan(host: UdxHost, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return bind_method(made, "plan", PLAN_ROLES)(host.server, context) if given else None

        return UdxFactory("filter", display_name, made).make_definition(make, plan)
    if not callable(user_object):
        raise _make_unusable_error("filter", display_name, "prepare, process or run")
    return make_object_definition(
        "filter",
        display_name,
        user_object,
        lambda host, make: _make_filter_from_object(host, display_name, make),
    )


def make_parser_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Parser | RecordParser]:
    """Return a parser as something that is built by name.

    `user_object` is a factory with `prepare`; or a class of parsers, with `process` or with `parse`.

    Raises:
        LoadRefused: It is none of these.
    """
    if callable(getattr(user_object, "prepare", None)):
        made = _instantiate_factory(display_name, user_object)
        columns = PerColumnParamReader()

        def make(host: UdxHost, context: PlanContext) -> Parser | RecordParser:
            def prepare(target: ParseTarget) -> tuple[object, SizedColumnTypes]:
                given, types = SizedColumnTypes.from_schema(target.schema), SizedColumnTypes()
                server, own = host.server, _make_column_params(target)
                if callable(getattr(made, "getParserReturnType", None)):
                    declare = bind_method(made, "getParserReturnType", RETURN_TYPE_ROLES)
                    declare(server, own, context, given, types)
                types = types if types.getColumnCount() else given
                return bind_method(made, "prepare", PARSER_PREPARE_ROLES)(
                    server, own, context, types
                ), types

            def chunker(target: ParseTarget, types: SizedColumnTypes) -> object:
                method = bind_method(made, "prepareChunker", PARSER_PREPARE_ROLES)
                return method(host.server, _make_column_params(target), context, types)

            splittable = _method_returns_true(made, "canApportionParser")
            cuts = _method_returns_true(made, "isChunkerApportionable")
            parser = _make_udx_parser(host, prepare, splittable=splittable or cuts)
            # A parser that begins within a file by itself needs nobody to find its records.
            if isinstance(parser, UdxParser) and not splittable and _has_chunker(made):
                parser.use_chunker(chunker)
            return parser

        def plan(host: UdxHost, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return (
                bind_method(made, "plan", PARSER_PLAN_ROLES)(host.server, columns, context)
                if given
                else None
            )

        return UdxFactory("parser", display_name, made).make_definition(make, plan)
    if not callable(user_object):
        raise _make_unusable_error("parser", display_name, "prepare, process or parse")
    return make_object_definition("parser", display_name, user_object, _make_parser_from_object)


def make_source_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Source | RecordSource]:
    """Return a source as something that is built by name.

    `user_object` is a factory with `prepareUDSources`, `prepareUDSourcesExecutor` or `prepare`; or a
    class of sources, with `files` and `read` or with `run`; or a generator function.

    Raises:
        LoadRefused: It is none of these.
    """
    names = ("prepareUDSourcesExecutor", "prepareUDSources", "prepare")
    name = next((each for each in names if callable(getattr(user_object, each, None))), None)
    if name is not None:
        made = _instantiate_factory(display_name, user_object)
        method = name

        def make(host: UdxHost, context: PlanContext) -> Source | RecordSource:
            def prepare() -> list[object]:
                return _create_sources(
                    bind_method(made, method, PLAN_ROLES)(host.server, context), host.server
                )

            source: Source | RecordSource = call_before_load(
                host, lambda: make_udx_source(host, display_name, prepare)
            )
            return source

        def plan(host: UdxHost, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return bind_method(made, "plan", PLAN_ROLES)(host.server, context) if given else None

        return UdxFactory("source", display_name, made).make_definition(make, plan)
    if not callable(user_object):
        raise _make_unusable_error("source", display_name, "prepareUDSources, read or run")
    return make_object_definition(
        "source",
        display_name,
        user_object,
        lambda host, make: _make_source_from_object(host, display_name, make),
    )


def _create_sources(prepared: Any, server: ServerInterface) -> list[object]:
    create = getattr(prepared, "createNextSource", None)
    if not callable(create):
        return list(prepared) if isinstance(prepared, (list, tuple)) else [prepared]
    if callable(getattr(prepared, "setup", None)):
        bind_method(prepared, "setup", SETUP_ROLES)(server)
    sources = list(
        iter(lambda: bind_method(prepared, "createNextSource", SETUP_ROLES)(server), None)
    )
    if callable(getattr(prepared, "destroy", None)):
        bind_method(prepared, "destroy", SETUP_ROLES)(server)
    return sources


def _make_source_from_object(
    host: UdxHost, display_name: str, make: Callable[[], Any]
) -> Source | RecordSource:
    made = call_before_load(host, make)
    reads = callable(getattr(made, "read", None)) or callable(getattr(made, "read_records", None))
    if reads and callable(getattr(made, "files", None)):
        return made  # type: ignore[no-any-return]
    if callable(getattr(made, "process", None)) or _method_returns_true(made, "useSideChannel"):
        return make_udx_source(host, display_name, lambda: [made])
    run = getattr(made, "run", made)
    if not callable(run):
        raise _make_unusable_error("source", display_name, "prepareUDSources, read or run")
    return GeneratorSource(host, display_name, run)


def _make_parser_from_object(host: UdxHost, make: Callable[[], Any]) -> Parser | RecordParser:
    made = call_before_load(host, make)
    if callable(getattr(made, "parse", None)) or callable(getattr(made, "parse_records", None)):
        return made  # type: ignore[no-any-return]
    if not (
        callable(getattr(made, "process", None)) or _method_returns_true(made, "useSideChannel")
    ):
        raise LoadRefused(what=host.name, reason="it has no method prepare, process or parse")
    return _make_udx_parser(
        host, lambda target: (make(), SizedColumnTypes.from_schema(target.schema))
    )


def _make_udx_parser(
    host: UdxHost, prepare: Prepare, *, splittable: bool = False
) -> UdxParser | UdxRecordParser:
    # What it is can only be seen once there is one; for the load itself it is prepared again.
    try:
        made, _ = prepare(ParseTarget(TableSchema(1, ())))
    except BaseException as error:
        # A parser may refuse to parse no columns.
        if is_ctrl_c(error):
            raise
        made = None
    if not _method_returns_true(made, "useSideChannel"):
        return UdxParser(host, prepare, splittable=splittable)
    if not callable(getattr(made, "process", None)):
        return UdxRecordParser(host, prepare)
    return UdxDualParser(host, prepare, splittable=splittable)


def _has_chunker(factory: object) -> bool:
    return callable(getattr(factory, "prepareChunker", None))


def _make_column_params(target: ParseTarget) -> PerColumnParamReader:
    return PerColumnParamReader(
        {
            name: {key: value for key, value in asdict(options).items() if value is not None}
            for name, options in target.options.items()
        }
    )


def _make_filter_from_object(
    host: UdxHost, display_name: str, make: Callable[[], Any]
) -> Filter | RecordFilter:
    made = call_before_load(host, make)
    if callable(getattr(made, "process", None)) or _method_returns_true(made, "useSideChannel"):
        return _make_udx_filter(host, make)
    if callable(getattr(made, "run_records", None)):
        return made  # type: ignore[no-any-return]
    found = make_generator_filter(host, made)
    if found is None:
        raise _make_unusable_error("filter", display_name, "prepare, process or run")
    return found


def _make_udx_filter(host: UdxHost, make: Any) -> Filter | RecordFilter:
    hosted = UdxFilter(host, make)
    made = call_before_load(host, lambda: hosted.user_object)
    if _method_returns_true(made, "useSideChannel"):
        return make_udx_record_filter(hosted)
    if not callable(getattr(made, "process", None)):
        raise LoadRefused(what=host.name, reason=f"{type(made).__name__} has no method process")
    bind_method(made, "process", PROCESS_ROLES)
    return hosted


def _method_returns_true(user_object: object, method_name: str) -> bool:
    method = getattr(user_object, method_name, None)
    return callable(method) and bool(method())


def _instantiate_factory(display_name: str, user_object: Any) -> object:
    # Of a class, one object: documentation calls its methods class methods, existing code does not.
    if not inspect.isclass(user_object):
        return user_object
    try:
        return user_object()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise LoadRefused(what=display_name, reason=f"{type(error).__name__}: {error}") from error


def _make_unusable_error(kind: str, display_name: str, methods: str) -> LoadRefused:
    return LoadRefused(
        what=f"{kind} {display_name}",
        reason=f"it has no method {methods}, and is no function either",
    )


# --- What `getParameterType`, `plan` and `prepare` of user code say, and what is made of it.

Phase = TypeVar("Phase")

PLAN_PARAMETER = "$plan"
"""The parameter by which tasks are handed what `plan` wrote."""

_HOST_PARAMETERS = (
    PhaseParameter("whole_input", bool),
    PhaseParameter("patience", dt.timedelta),
    PhaseParameter("chunk_bytes", int),
)
_PARAMETER_TYPES: dict[object, type] = {
    kind: kind for kind in (str, int, float, bool, dt.timedelta)
}
_PARAMETER_TYPES |= {kind.__name__: kind for kind in (str, int, float, bool)}
_PARAMETER_TYPES |= {"dt.timedelta": dt.timedelta, "datetime.timedelta": dt.timedelta}
_PARAMETER_TYPES |= {"timedelta": dt.timedelta}


@dataclass(frozen=True)
class UdxDefinition(PhaseDefinition[Phase]):
    """A factory of the SDK's kind; a parameter that it does not declare is ignored.

    `planner` calls the `plan` of the factory with typed parameters, and returns what that wrote.
    """

    planner: Callable[[Mapping[str, object]], Mapping[str, object]] = dict

    def build_phase(self, arguments: Mapping[str, object]) -> Phase:
        """Make one, with what `compute_planned_values` returned among the parameters.

        Without that, the factory's `plan` is called first.

        Raises:
            LoadRefused: A parameter is of another type, or the factory's `plan` or `prepare` refuses.
        """
        # Whoever planned was warned then, on the driver.
        return PhaseDefinition.build_phase(
            self, self._select_declared(arguments, warn=PLAN_PARAMETER not in arguments)
        )

    def compute_planned_values(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Return what user code plans.

        Raises:
            LoadRefused: It refuses, or a parameter is of another type.
        """
        typed: PhaseDefinition[Mapping[str, object]]
        typed = PhaseDefinition(self.name, dict, self.parameters)
        return {
            PLAN_PARAMETER: dict(
                self.planner(typed.build_phase(self._select_declared(arguments, warn=True)))
            )
        }

    def _select_declared(self, arguments: Mapping[str, object], *, warn: bool) -> dict[str, object]:
        kinds = {parameter.name.lower(): parameter.kind for parameter in self.parameters}
        known: dict[str, object] = {}
        for name, value in arguments.items():
            kind = kinds.get(name.lower())
            if kind is None and warn:
                warnings.warn(
                    f"{self.name} declares no parameter {name}; it is ignored",
                    UserWarning,
                    stacklevel=4,
                )
            elif kind is not None:
                text = kind is str and value is not None
                known[name] = str(value) if text else value
        return known


@dataclass(frozen=True, slots=True)
class UdxFactory:
    """A factory of user code, by its methods. `kind` is filter, parser or source."""

    kind: StepKind
    display_name: str
    user_object: object
    environment: Any = None

    def make_definition(
        self, make: Callable[[UdxHost, PlanContext], Phase], plan: PlanCall
    ) -> PhaseDefinition[Any]:
        """Return it as something that is built by name.

        `plan` calls its method `plan`, `make` its `prepare`; both are given what they need.
        """
        declared = self._list_declared_parameters()
        own = {parameter.name.lower() for parameter in declared}
        ours = [parameter for parameter in _HOST_PARAMETERS if parameter.name not in own]

        def planner(values: Mapping[str, object]) -> dict[str, object]:
            host, _ = self.make_host(values, ours)
            context = PlanContext(environment=self.environment)
            call_before_load(host, lambda: plan(host, context))
            return context.getWriter().values()

        def build(**values: Any) -> Phase:
            planned = values.pop(PLAN_PARAMETER, None)
            if planned is None:
                planned = planner(values)
            host, _ = self.make_host(values, ours)
            return make(host, PlanContext(planned, self.environment))

        parameters = (*declared, *ours, PhaseParameter(PLAN_PARAMETER, dict))
        return UdxDefinition(f"{self.kind} {self.display_name}", build, parameters, planner)

    def make_host(
        self, values: Mapping[str, object], host_parameters: list[PhaseParameter]
    ) -> tuple[UdxHost, dict[str, object]]:
        """Return the host for some parameters, and those that are user code's."""
        names = {parameter.name for parameter in host_parameters}
        given = {name: value for name, value in values.items() if name not in names}
        name = str(LoadStep(self.kind, self.display_name, given))
        limits = _make_udx_limits({key: value for key, value in values.items() if key in names})
        server = ServerInterface(given, self.environment, name)
        return UdxHost(name, server, limits), given

    def _list_declared_parameters(self) -> list[PhaseParameter]:
        types = SizedColumnTypes()
        if callable(getattr(self.user_object, "getParameterType", None)):
            server = ServerInterface(None, self.environment, self.display_name)
            declare = bind_method(self.user_object, "getParameterType", PARAMETER_TYPE_ROLES)
            call_before_load(
                UdxHost(f"{self.kind} {self.display_name}"), lambda: declare(server, types)
            )
        return [PhaseParameter(name, kind.python_type) for name, kind in types.list_columns()]


PlanCall = Callable[[UdxHost, PlanContext], object]


def call_before_load(host: UdxHost, call: Callable[[], Any]) -> Any:
    """Return what user code returns that is called before anything is loaded.

    Raises:
        LoadRefused: It raised an error.
    """
    try:
        return call()
    except LoadRefused:
        raise
    except BaseException as error:
        if shared_progress_page.is_ctrl_c(error):
            raise
        raise make_load_error(host.name, error) from error


def make_load_error(label: str, error: BaseException) -> LoadRefused:
    """Return the error that says what user code raised before anything was loaded, and where."""
    if isinstance(error, PhaseFailed):
        return LoadRefused(what=label, reason=str(error).rstrip("."))
    return LoadRefused(
        what=label, reason=f"{type(error).__name__}: {error}{describe_user_code_line(error)}"
    )


def make_object_definition(
    kind: StepKind,
    display_name: str,
    user_object: Any,
    make: Callable[[UdxHost, Callable[[], Any]], Phase],
) -> PhaseDefinition[Phase]:
    """Return a class or function of ours as something that is built by name.

    A class is called with its parameters; of a function that filters, those behind the first are.
    `make` is given what returns an object of the class, a new one with each call, or the function.
    """
    is_class = inspect.isclass(user_object)
    skipped = 0 if is_class or kind == "source" else 1
    parameters = _list_keyword_parameters(
        user_object, skip_count=skipped, label=f"{kind} {display_name}"
    )
    own = {parameter.name for parameter in parameters}
    ours = [each for each in _HOST_PARAMETERS if each.name not in own]
    factory = UdxFactory(kind, display_name, user_object)
    whole = not is_class

    def build(**values: Any) -> Phase:
        host, given = factory.make_host(values, ours)
        if whole and "whole_input" not in values:
            host = replace(host, limits=replace(host.limits, whole_input=True))
        return make(
            host, lambda: user_object(**given) if is_class else _bind_arguments(user_object, given)
        )

    return PhaseDefinition(f"{kind} {display_name}", build, (*parameters, *ours))


def _bind_arguments(
    function: Callable[..., Any], arguments: dict[str, object]
) -> Callable[..., Any]:
    return partial(function, **arguments) if arguments else function


def _list_keyword_parameters(
    user_object: Any, *, skip_count: int, label: str
) -> tuple[PhaseParameter, ...]:
    try:
        given = list(inspect.signature(user_object).parameters.values())[skip_count:]
    except (TypeError, ValueError):  # built in, without a signature
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(_make_parameter(each, label) for each in given if each.kind in kinds)


def _make_parameter(parameter: inspect.Parameter, label: str) -> PhaseParameter:
    required = parameter.default is parameter.empty
    known = _PARAMETER_TYPES.get(_strip_optional(parameter.annotation))
    if known is None and not required:
        known = _PARAMETER_TYPES.get(type(parameter.default))
    if known is None:
        if parameter.annotation is parameter.empty:
            known = str
        else:
            raise LoadRefused(
                what=label,
                reason=f"its parameter {parameter.name} is none of str, int, float, bool, "
                "datetime.timedelta",
            )
    return PhaseParameter(parameter.name, known, required)


def _strip_optional(annotation: object) -> object:
    text = annotation if isinstance(annotation, str) else None
    if text is not None:
        return text.replace("| None", "").replace("None |", "").strip()
    arguments = [each for each in getattr(annotation, "__args__", ()) if each is not type(None)]
    return arguments[0] if len(arguments) == 1 else annotation


def _make_udx_limits(values: Mapping[str, object]) -> UdxLimits:
    limits = UdxLimits(call_timeout_s=shared_progress_page.get_user_code_limits().call_s)
    whole, patience, chunk = (values.get(parameter.name) for parameter in _HOST_PARAMETERS)
    if whole is not None:
        limits = replace(limits, whole_input=bool(whole))
    if patience is not None:
        limits = replace(limits, call_timeout_s=cast("dt.timedelta", patience).total_seconds())
    if chunk is not None:
        limits = replace(limits, chunk_bytes=max(1, cast("int", chunk)))
    return limits
