"""Definitions of user-defined phases, made from SDK factories, classes or functions.

An SDK factory declares its parameters in `getParameterType`. Classes and functions of Snowmelt's
own API declare them in their signature.
"""

from __future__ import annotations

import datetime as dt
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter
from snowmelt.load.phase_protocols import (
    Filter,
    Parser,
    ParseTarget,
    RecordFilter,
    RecordParser,
    RecordSource,
    Source,
)
from snowmelt.load.task import LoadStep, StepKind
from snowmelt.load.udx.filters import (
    UdxDualFilter,
    UdxFilter,
    UdxRecordFilter,
    make_generator_filter,
)
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
    call_optional,
    describe_user_code_line,
)
from snowmelt.load.udx.parsers import Prepare, UdxDualParser, UdxParser, UdxRecordParser
from snowmelt.load.udx.shared_progress_page import get_user_code_limits, is_ctrl_c
from snowmelt.load.udx.sources import GeneratorSource, make_udx_source
from snowmelt.load.udx.vertica_sdk.server_interface import (
    PerColumnParamReader,
    PlanContext,
    ServerInterface,
)
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.schema.types import TableSchema

Phase = TypeVar("Phase")

# Parameter that passes the values written by `plan` to the tasks.
PLAN_PARAMETER = "$plan"

_HOST_PARAMETERS = (
    PhaseParameter("whole_input", bool),
    PhaseParameter("patience", dt.timedelta),
    PhaseParameter("chunk_bytes", int),
)
_PARAMETER_TYPES: dict[object, type] = {
    key: kind for kind in (str, int, float, bool, dt.timedelta) for key in (kind, kind.__name__)
}
_PARAMETER_TYPES |= {"dt.timedelta": dt.timedelta, "datetime.timedelta": dt.timedelta}
_EXPECTED_METHODS: Mapping[StepKind, str] = {
    "filter": "prepare, process or run",
    "parser": "prepare, process or parse",
    "source": "prepareUDSources, read or run",
}


def make_filter_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Filter | RecordFilter]:
    """Return the definition of a user's filter.

    `user_object` is a factory with `prepare`, a class with `process`, `run` or `run_records`, a
    generator function of a reader, or a function of bytes.

    Raises:
        LoadRefused: If `user_object` is none of these.
    """
    if not _is_defined(user_object, "prepare"):
        make_object = partial(_make_filter_from_object, display_name)
        return _define_object("filter", display_name, user_object, make_object)
    factory = _instantiate_factory(display_name, user_object)

    def make(host: UdxHost, context: PlanContext) -> Filter | RecordFilter:
        prepare = bind_method(factory, "prepare", PLAN_ROLES)
        return _make_udx_filter(host, lambda: prepare(host.server, context))

    return _define_factory("filter", display_name, factory, make)


def make_parser_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Parser | RecordParser]:
    """Return the definition of a user's parser.

    `user_object` is a factory with `prepare`, or a class with `process`, `parse` or `parse_records`.

    Raises:
        LoadRefused: If `user_object` is none of these.
    """
    if not _is_defined(user_object, "prepare"):
        return _define_object("parser", display_name, user_object, _make_parser_from_object)
    factory = _instantiate_factory(display_name, user_object)

    def make(host: UdxHost, context: PlanContext) -> Parser | RecordParser:
        def prepare(target: ParseTarget) -> tuple[object, SizedColumnTypes]:
            given, types = SizedColumnTypes.from_schema(target.schema), SizedColumnTypes()
            server, own = host.server, _make_column_params(target)
            if _is_defined(factory, "getParserReturnType"):
                declare = bind_method(factory, "getParserReturnType", RETURN_TYPE_ROLES)
                declare(server, own, context, given, types)
            types = types if types.getColumnCount() else given
            method = bind_method(factory, "prepare", PARSER_PREPARE_ROLES)
            return method(server, own, context, types), types

        def prepare_chunker(target: ParseTarget, types: SizedColumnTypes) -> object:
            method = bind_method(factory, "prepareChunker", PARSER_PREPARE_ROLES)
            return method(host.server, _make_column_params(target), context, types)

        splittable = bool(call_optional(factory, "canApportionParser"))
        cuts = bool(call_optional(factory, "isChunkerApportionable"))
        parser = _make_udx_parser(host, prepare, splittable=splittable or cuts)
        # A parser that can start within a file needs no chunker.
        chunked = not splittable and _is_defined(factory, "prepareChunker")
        if chunked and isinstance(parser, UdxParser):
            parser.prepare_chunker = prepare_chunker
        return parser

    return _define_factory("parser", display_name, factory, make)


def make_source_definition(
    display_name: str, user_object: Any
) -> PhaseDefinition[Source | RecordSource]:
    """Return the definition of a user's source.

    `user_object` is a factory with `prepareUDSources`, `prepareUDSourcesExecutor` or `prepare`, a
    class with `process`, with `files` and `read`, or with `run`, or a generator function.

    Raises:
        LoadRefused: If `user_object` is none of these.
    """
    names = ("prepareUDSourcesExecutor", "prepareUDSources", "prepare")
    method_name = next((name for name in names if _is_defined(user_object, name)), None)
    if method_name is None:
        make_object = partial(_make_source_from_object, display_name)
        return _define_object("source", display_name, user_object, make_object)
    factory, prepare = _instantiate_factory(display_name, user_object), method_name

    def make(host: UdxHost, context: PlanContext) -> Source | RecordSource:
        def make_source() -> Source | RecordSource:
            prepared = bind_method(factory, prepare, PLAN_ROLES)(host.server, context)
            return make_udx_source(host, display_name, _create_sources(prepared, host.server))

        source: Source | RecordSource = _call_before_load(host, make_source)
        return source

    return _define_factory("source", display_name, factory, make)


def _create_sources(prepared: Any, server: ServerInterface) -> list[object]:
    if not _is_defined(prepared, "createNextSource"):
        return list(prepared) if isinstance(prepared, (list, tuple)) else [prepared]
    if _is_defined(prepared, "setup"):
        bind_method(prepared, "setup", SETUP_ROLES)(server)
    create = bind_method(prepared, "createNextSource", SETUP_ROLES)
    sources = list(iter(lambda: create(server), None))
    if _is_defined(prepared, "destroy"):
        bind_method(prepared, "destroy", SETUP_ROLES)(server)
    return sources


def _make_source_from_object(
    display_name: str, host: UdxHost, make: Callable[[], Any]
) -> Source | RecordSource:
    made = _call_before_load(host, make)
    if _is_defined(made, "files") and (
        _is_defined(made, "read") or _is_defined(made, "read_records")
    ):
        return made  # type: ignore[no-any-return]
    if _is_state_machine(made):
        return make_udx_source(host, display_name, [made])
    run = getattr(made, "run", made)
    if not callable(run):
        raise _make_unusable_error("source", display_name)
    return GeneratorSource(host, display_name, run)


def _make_parser_from_object(host: UdxHost, make: Callable[[], Any]) -> Parser | RecordParser:
    made = _call_before_load(host, make)
    if _is_defined(made, "parse") or _is_defined(made, "parse_records"):
        return made  # type: ignore[no-any-return]
    if not _is_state_machine(made):
        raise LoadRefused(what=host.name, reason="expected a method prepare, process or parse")
    return _make_udx_parser(
        host, lambda target: (make(), SizedColumnTypes.from_schema(target.schema))
    )


def _make_udx_parser(
    host: UdxHost, prepare: Prepare, *, splittable: bool = False
) -> UdxParser | UdxRecordParser:
    # The methods are known only from an object. The load prepares another one.
    try:
        made, _ = prepare(ParseTarget(TableSchema(1, ())))
    except BaseException as error:
        # Use a target with a column, because a parser may reject one without columns.
        if is_ctrl_c(error):
            raise
        made = None
    if not call_optional(made, "useSideChannel"):
        return UdxParser(host, prepare, splittable=splittable)
    if not _is_defined(made, "process"):
        return UdxRecordParser(host, prepare)
    return UdxDualParser(host, prepare, splittable=splittable)


def _make_column_params(target: ParseTarget) -> PerColumnParamReader:
    return PerColumnParamReader(
        {
            name: {key: value for key, value in asdict(options).items() if value is not None}
            for name, options in target.options.items()
        }
    )


def _make_filter_from_object(
    display_name: str, host: UdxHost, make: Callable[[], Any]
) -> Filter | RecordFilter:
    made = _call_before_load(host, make)
    if _is_state_machine(made):
        return _make_udx_filter(host, make)
    if _is_defined(made, "run_records"):
        return made  # type: ignore[no-any-return]
    found = make_generator_filter(host, made)
    if found is None:
        raise _make_unusable_error("filter", display_name)
    return found


def _make_udx_filter(host: UdxHost, make: Callable[[], Any]) -> Filter | RecordFilter:
    hosted = UdxFilter(host, make)
    made = _call_before_load(host, lambda: hosted.instance.user_object)
    if call_optional(made, "useSideChannel"):
        return UdxDualFilter(hosted) if _is_defined(made, "process") else UdxRecordFilter(hosted)
    if not _is_defined(made, "process"):
        raise LoadRefused(what=host.name, reason=f"{type(made).__name__} has no method process")
    bind_method(made, "process", PROCESS_ROLES)
    return hosted


def _is_defined(user_object: object, method_name: str) -> bool:
    return callable(getattr(user_object, method_name, None))


def _is_state_machine(user_object: object) -> bool:
    return _is_defined(user_object, "process") or bool(call_optional(user_object, "useSideChannel"))


def _instantiate_factory(display_name: str, user_object: Any) -> Any:
    # Create an object: the documentation shows factory methods as class methods, but existing code
    # uses `self`.
    if not inspect.isclass(user_object):
        return user_object
    return _call_before_load(UdxHost(display_name), user_object)


def _make_unusable_error(kind: StepKind, display_name: str) -> LoadRefused:
    return LoadRefused(
        what=f"{kind} {display_name}",
        reason=f"expected a function, or a method {_EXPECTED_METHODS[kind]}",
    )


@dataclass(frozen=True)
class UdxDefinition(PhaseDefinition[Phase]):
    """Definition from an SDK factory. Undeclared parameters cause a warning and are ignored.

    `planner` calls the factory's `plan` with typed parameters, and returns the values that it
    wrote.
    """

    planner: Callable[[Mapping[str, object]], Mapping[str, object]] = dict

    def build_phase(self, arguments: Mapping[str, object]) -> Phase:
        """Build a phase. Calls the factory's `plan` if the arguments have no planned values."""
        # Do not warn again: the driver warned when it planned.
        return PhaseDefinition.build_phase(
            self, self._select_declared(arguments, warn=PLAN_PARAMETER not in arguments)
        )

    def compute_planned_values(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Return the values that the factory's `plan` wrote."""
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


def _define_factory(
    kind: StepKind,
    display_name: str,
    factory: object,
    make: Callable[[UdxHost, PlanContext], Phase],
) -> PhaseDefinition[Phase]:
    """Return the definition of an SDK factory. `make` calls its `prepare`."""
    label = f"{kind} {display_name}"
    types = SizedColumnTypes()
    if _is_defined(factory, "getParameterType"):
        server = ServerInterface(None, display_name)
        declare = bind_method(factory, "getParameterType", PARAMETER_TYPE_ROLES)
        _call_before_load(UdxHost(label), lambda: declare(server, types))
    declared = [PhaseParameter(name, kind.python_type) for name, kind in types.list_columns()]
    names = {parameter.name.lower() for parameter in declared}
    ours = [parameter for parameter in _HOST_PARAMETERS if parameter.name not in names]

    def planner(values: Mapping[str, object]) -> dict[str, object]:
        host, _ = _make_host(kind, display_name, values, ours)
        context = PlanContext()

        def plan() -> None:
            if kind == "parser":
                columns = PerColumnParamReader()
                bind_method(factory, "plan", PARSER_PLAN_ROLES)(host.server, columns, context)
            else:
                bind_method(factory, "plan", PLAN_ROLES)(host.server, context)

        if _is_defined(factory, "plan"):
            _call_before_load(host, plan)
        return context.getWriter().values()

    def build(**values: Any) -> Phase:
        planned = values.pop(PLAN_PARAMETER, None)
        if planned is None:
            planned = planner(values)
        host, _ = _make_host(kind, display_name, values, ours)
        return make(host, PlanContext(planned))

    parameters = (*declared, *ours, PhaseParameter(PLAN_PARAMETER, dict))
    return UdxDefinition(label, build, parameters, planner)


def _make_host(
    kind: StepKind,
    display_name: str,
    values: Mapping[str, Any],
    host_parameters: list[PhaseParameter],
) -> tuple[UdxHost, dict[str, object]]:
    """Return the host, and the parameters that user code declared."""
    ours = {parameter.name for parameter in host_parameters}
    given: dict[str, object] = {}
    limits: dict[str, Any] = {"call_timeout_s": get_user_code_limits().call_s}
    for name, value in values.items():
        if name not in ours:
            given[name] = value
        elif name == "patience":
            limits["call_timeout_s"] = value.total_seconds()
        else:
            limits[name] = max(1, value) if name == "chunk_bytes" else value
    label = str(LoadStep(kind, display_name, given))
    return UdxHost(label, ServerInterface(given, label), UdxLimits(**limits)), given


def _call_before_load(host: UdxHost, call: Callable[[], Any]) -> Any:
    """Call user code before the load starts. Its errors become LoadRefused."""
    try:
        return call()
    except LoadRefused:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise make_load_error(host.name, error) from error


def make_load_error(label: str, error: BaseException) -> LoadRefused:
    """Return the error for an exception of user code before the load starts."""
    if isinstance(error, PhaseFailed):
        return LoadRefused(what=label, reason=str(error).rstrip("."))
    return LoadRefused(
        what=label, reason=f"{type(error).__name__}: {error}{describe_user_code_line(error)}"
    )


def _define_object(
    kind: StepKind,
    display_name: str,
    user_object: Any,
    make: Callable[[UdxHost, Callable[[], Any]], Phase],
) -> PhaseDefinition[Phase]:
    """Return the definition of a class or function of Snowmelt's own API.

    The first parameter of a filter function is its input. `make` receives the function, or a
    callable that returns a new object of the class.
    """
    if not callable(user_object):
        raise _make_unusable_error(kind, display_name)
    label, is_class = f"{kind} {display_name}", inspect.isclass(user_object)
    try:
        signature = list(inspect.signature(user_object).parameters.values())
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        signature = []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = signature if is_class or kind == "source" else signature[1:]
    parameters = [_make_parameter(each, label) for each in own if each.kind in kinds]
    names = {parameter.name for parameter in parameters}
    ours = [each for each in _HOST_PARAMETERS if each.name not in names]

    def build(**values: Any) -> Phase:
        host, given = _make_host(kind, display_name, values, ours)
        if not is_class and "whole_input" not in values:
            host = replace(host, limits=replace(host.limits, whole_input=True))
        bound = partial(user_object, **given) if given else user_object
        return make(host, bound if is_class else lambda: bound)

    return PhaseDefinition(label, build, (*parameters, *ours))


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
                reason=f"invalid type of parameter {parameter.name}: expected str, int, float, "
                "bool or datetime.timedelta",
            )
    return PhaseParameter(parameter.name, known, required)


def _strip_optional(annotation: object) -> object:
    text = annotation if isinstance(annotation, str) else None
    if text is not None:
        return text.replace("| None", "").replace("None |", "").strip()
    arguments = [each for each in getattr(annotation, "__args__", ()) if each is not type(None)]
    return arguments[0] if len(arguments) == 1 else annotation
