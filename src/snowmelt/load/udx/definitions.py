"""What a name in a library stands for: a factory of the SDK's kind, or a class or function of ours."""

from __future__ import annotations

import datetime as dt
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.definition import Definition, Parameter
from snowmelt.load.phases import Target
from snowmelt.load.task import Step, StepKind
from snowmelt.load.udx import worker_progress as progress
from snowmelt.load.udx.filters import HostedFilter, hosted_record_filter, own_filter
from snowmelt.load.udx.input_window import Limits
from snowmelt.load.udx.instance import (
    PARAMETER_TYPE,
    PARSER_PLAN,
    PARSER_PREPARE,
    PLAN,
    PROCESS,
    RETURN_TYPE,
    SETUP,
    Host,
    bound,
    place_of,
)
from snowmelt.load.udx.parsers import HostedEitherParser, HostedParser, HostedRecordParser
from snowmelt.load.udx.sources import OwnSource, hosted_source
from snowmelt.load.udx.vertica_sdk.server_interface import (
    PerColumnParamReader,
    PlanContext,
    ServerInterface,
)
from snowmelt.load.udx.vertica_sdk.types import SizedColumnTypes
from snowmelt.load.udx.worker_progress import is_ctrl_c
from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    from snowmelt.load.phases import (
        Filter,
        Parser,
        RecordFilter,
        RecordParser,
        RecordSource,
        Source,
    )
    from snowmelt.load.udx.parsers import Prepare


def filter_definition(display: str, found: Any) -> Definition[Filter | RecordFilter]:
    """Return a filter as something that is built by name.

    `found` is a factory with `prepare`; or a class of filters: with `process`, with `run`, or with
    `run_records`; or a generator function of a reader; or a function of bytes.

    Raises:
        LoadRefused: It is none of these.
    """
    if callable(getattr(found, "prepare", None)):
        made = _factory(display, found)

        def make(host: Host, context: PlanContext) -> Filter | RecordFilter:
            prepare = bound(made, "prepare", PLAN)
            return _filter(host, lambda: prepare(host.server, context))

        def plan(host: Host, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return bound(made, "plan", PLAN)(host.server, context) if given else None

        return Factory("filter", display, made).definition(make, plan)
    if not callable(found):
        raise _nothing("filter", display, "prepare, process or run")
    return own_definition("filter", display, found, lambda host, make: _own(host, display, make))


def parser_definition(display: str, found: Any) -> Definition[Parser | RecordParser]:
    """Return a parser as something that is built by name.

    `found` is a factory with `prepare`; or a class of parsers, with `process` or with `parse`.

    Raises:
        LoadRefused: It is none of these.
    """
    if callable(getattr(found, "prepare", None)):
        made = _factory(display, found)
        columns = PerColumnParamReader()

        def make(host: Host, context: PlanContext) -> Parser | RecordParser:
            def prepare(target: Target) -> tuple[object, SizedColumnTypes]:
                given, types = SizedColumnTypes.of(target.schema), SizedColumnTypes()
                server, own = host.server, _columns(target)
                if callable(getattr(made, "getParserReturnType", None)):
                    declare = bound(made, "getParserReturnType", RETURN_TYPE)
                    declare(server, own, context, given, types)
                types = types if types.getColumnCount() else given
                return bound(made, "prepare", PARSER_PREPARE)(server, own, context, types), types

            def chunker(target: Target, types: SizedColumnTypes) -> object:
                method = bound(made, "prepareChunker", PARSER_PREPARE)
                return method(host.server, _columns(target), context, types)

            splittable = _answers(made, "canApportionParser")
            cuts = _answers(made, "isChunkerApportionable")
            parser = _parser(host, prepare, splittable=splittable or cuts)
            # A parser that begins within a file by itself needs nobody to find its records.
            if isinstance(parser, HostedParser) and not splittable and _chunks(made):
                parser.use_chunker(chunker)
            return parser

        def plan(host: Host, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return (
                bound(made, "plan", PARSER_PLAN)(host.server, columns, context) if given else None
            )

        return Factory("parser", display, made).definition(make, plan)
    if not callable(found):
        raise _nothing("parser", display, "prepare, process or parse")
    return own_definition("parser", display, found, _own_parser)


def source_definition(display: str, found: Any) -> Definition[Source | RecordSource]:
    """Return a source as something that is built by name.

    `found` is a factory with `prepareUDSources`, `prepareUDSourcesExecutor` or `prepare`; or a
    class of sources, with `files` and `read` or with `run`; or a generator function.

    Raises:
        LoadRefused: It is none of these.
    """
    names = ("prepareUDSourcesExecutor", "prepareUDSources", "prepare")
    name = next((each for each in names if callable(getattr(found, each, None))), None)
    if name is not None:
        made = _factory(display, found)
        method = name

        def make(host: Host, context: PlanContext) -> Source | RecordSource:
            def prepare() -> list[object]:
                return _sources(bound(made, method, PLAN)(host.server, context), host.server)

            source: Source | RecordSource = refused(
                host, lambda: hosted_source(host, display, prepare)
            )
            return source

        def plan(host: Host, context: PlanContext) -> object:
            given = callable(getattr(made, "plan", None))
            return bound(made, "plan", PLAN)(host.server, context) if given else None

        return Factory("source", display, made).definition(make, plan)
    if not callable(found):
        raise _nothing("source", display, "prepareUDSources, read or run")
    return own_definition(
        "source", display, found, lambda host, make: _own_source(host, display, make)
    )


def _sources(prepared: Any, server: ServerInterface) -> list[object]:
    create = getattr(prepared, "createNextSource", None)
    if not callable(create):
        return list(prepared) if isinstance(prepared, (list, tuple)) else [prepared]
    if callable(getattr(prepared, "setup", None)):
        bound(prepared, "setup", SETUP)(server)
    sources = list(iter(lambda: bound(prepared, "createNextSource", SETUP)(server), None))
    if callable(getattr(prepared, "destroy", None)):
        bound(prepared, "destroy", SETUP)(server)
    return sources


def _own_source(host: Host, display: str, make: Callable[[], Any]) -> Source | RecordSource:
    made = refused(host, make)
    reads = callable(getattr(made, "read", None)) or callable(getattr(made, "read_records", None))
    if reads and callable(getattr(made, "files", None)):
        return made  # type: ignore[no-any-return]
    if callable(getattr(made, "process", None)) or _answers(made, "useSideChannel"):
        return hosted_source(host, display, lambda: [made])
    run = getattr(made, "run", made)
    if not callable(run):
        raise _nothing("source", display, "prepareUDSources, read or run")
    return OwnSource(host, display, run)


def _own_parser(host: Host, make: Callable[[], Any]) -> Parser | RecordParser:
    made = refused(host, make)
    if callable(getattr(made, "parse", None)) or callable(getattr(made, "parse_records", None)):
        return made  # type: ignore[no-any-return]
    if not (callable(getattr(made, "process", None)) or _answers(made, "useSideChannel")):
        raise LoadRefused(what=host.name, reason="it has no method prepare, process or parse")
    return _parser(host, lambda target: (make(), SizedColumnTypes.of(target.schema)))


def _parser(
    host: Host, prepare: Prepare, *, splittable: bool = False
) -> HostedParser | HostedRecordParser:
    # What it is can only be seen once there is one; for the load itself it is prepared again.
    try:
        made, _ = prepare(Target(TableSchema(1, ())))
    except BaseException as error:
        # A parser may refuse to parse no columns.
        if is_ctrl_c(error):
            raise
        made = None
    if not _answers(made, "useSideChannel"):
        return HostedParser(host, prepare, splittable=splittable)
    if not callable(getattr(made, "process", None)):
        return HostedRecordParser(host, prepare)
    return HostedEitherParser(host, prepare, splittable=splittable)


def _chunks(factory: object) -> bool:
    return callable(getattr(factory, "prepareChunker", None))


def _columns(target: Target) -> PerColumnParamReader:
    return PerColumnParamReader(
        {
            name: {key: value for key, value in asdict(options).items() if value is not None}
            for name, options in target.options.items()
        }
    )


def _own(host: Host, display: str, make: Callable[[], Any]) -> Filter | RecordFilter:
    made = refused(host, make)
    if callable(getattr(made, "process", None)) or _answers(made, "useSideChannel"):
        return _filter(host, make)
    if callable(getattr(made, "run_records", None)):
        return made  # type: ignore[no-any-return]
    found = own_filter(host, made)
    if found is None:
        raise _nothing("filter", display, "prepare, process or run")
    return found


def _filter(host: Host, make: Any) -> Filter | RecordFilter:
    hosted = HostedFilter(host, make)
    made = refused(host, lambda: hosted.made)
    if _answers(made, "useSideChannel"):
        return hosted_record_filter(hosted)
    if not callable(getattr(made, "process", None)):
        raise LoadRefused(what=host.name, reason=f"{type(made).__name__} has no method process")
    bound(made, "process", PROCESS)
    return hosted


def _answers(made: object, name: str) -> bool:
    method = getattr(made, name, None)
    return callable(method) and bool(method())


def _factory(display: str, found: Any) -> object:
    # Of a class, one object: documentation calls its methods class methods, existing code does not.
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise LoadRefused(what=display, reason=f"{type(error).__name__}: {error}") from error


def _nothing(kind: str, display: str, methods: str) -> LoadRefused:
    return LoadRefused(
        what=f"{kind} {display}", reason=f"it has no method {methods}, and is no function either"
    )


# --- What `getParameterType`, `plan` and `prepare` of user code say, and what is made of it.

Phase = TypeVar("Phase")

PLANNED = "$plan"
"""The parameter by which tasks are handed what `plan` wrote."""

_HOST_PARAMETERS = (
    Parameter("whole_input", bool),
    Parameter("patience", dt.timedelta),
    Parameter("chunk_bytes", int),
)
_KINDS: dict[object, type] = {kind: kind for kind in (str, int, float, bool, dt.timedelta)}
_KINDS |= {kind.__name__: kind for kind in (str, int, float, bool)}
_KINDS |= {"dt.timedelta": dt.timedelta, "datetime.timedelta": dt.timedelta}
_KINDS |= {"timedelta": dt.timedelta}


@dataclass(frozen=True)
class HostedDefinition(Definition[Phase]):
    """A factory of the SDK's kind; a parameter that it does not declare is ignored.

    `planner` calls its `plan` with typed parameters, and returns what that wrote.
    """

    planner: Callable[[Mapping[str, object]], Mapping[str, object]] = dict

    def build(self, given: Mapping[str, object]) -> Phase:
        """Make one, with what `plan` returned among the parameters; without, `plan` is called.

        Raises:
            LoadRefused: A parameter is of another type, or `plan` or `prepare` refuses.
        """
        # Whoever planned was warned then, on the driver.
        return Definition.build(self, self._known(given, warn=PLANNED not in given))

    def plan(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """Return what user code plans.

        Raises:
            LoadRefused: It refuses, or a parameter is of another type.
        """
        typed: Definition[Mapping[str, object]]
        typed = Definition(self.name, dict, self.parameters)
        return {PLANNED: dict(self.planner(typed.build(self._known(given, warn=True))))}

    def _known(self, given: Mapping[str, object], *, warn: bool) -> dict[str, object]:
        kinds = {parameter.name.lower(): parameter.kind for parameter in self.parameters}
        known: dict[str, object] = {}
        for name, value in given.items():
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
class Factory:
    """A factory of user code, by its methods. `kind` is filter, parser or source."""

    kind: StepKind
    display: str
    made: object
    surroundings: Any = None

    def definition(self, make: Callable[[Host, PlanContext], Phase], plan: Plan) -> Definition[Any]:
        """Return it as something that is built by name.

        `plan` calls its method `plan`, `make` its `prepare`; both are given what they need.
        """
        declared = self._declared()
        own = {parameter.name.lower() for parameter in declared}
        ours = [parameter for parameter in _HOST_PARAMETERS if parameter.name not in own]

        def planner(values: Mapping[str, object]) -> dict[str, object]:
            host, _ = self.host(values, ours)
            context = PlanContext(surroundings=self.surroundings)
            refused(host, lambda: plan(host, context))
            return context.getWriter().values()

        def build(**values: Any) -> Phase:
            planned = values.pop(PLANNED, None)
            if planned is None:
                planned = planner(values)
            host, _ = self.host(values, ours)
            return make(host, PlanContext(planned, self.surroundings))

        parameters = (*declared, *ours, Parameter(PLANNED, dict))
        return HostedDefinition(f"{self.kind} {self.display}", build, parameters, planner)

    def host(
        self, values: Mapping[str, object], ours: list[Parameter]
    ) -> tuple[Host, dict[str, object]]:
        """Return the host for some parameters, and those that are user code's."""
        names = {parameter.name for parameter in ours}
        given = {name: value for name, value in values.items() if name not in names}
        name = str(Step(self.kind, self.display, given))
        limits = _limits({key: value for key, value in values.items() if key in names})
        server = ServerInterface(given, self.surroundings, name)
        return Host(name, server, limits), given

    def _declared(self) -> list[Parameter]:
        types = SizedColumnTypes()
        if callable(getattr(self.made, "getParameterType", None)):
            server = ServerInterface(None, self.surroundings, self.display)
            declare = bound(self.made, "getParameterType", PARAMETER_TYPE)
            refused(Host(f"{self.kind} {self.display}"), lambda: declare(server, types))
        return [Parameter(name, kind.python) for name, kind in types.pairs()]


Plan = Callable[[Host, PlanContext], object]


def refused(host: Host, call: Callable[[], Any]) -> Any:
    """Return what user code returns that is called before anything is loaded.

    Raises:
        LoadRefused: It raised an error.
    """
    try:
        return call()
    except LoadRefused:
        raise
    except BaseException as error:
        if progress.is_ctrl_c(error):
            raise
        raise refusal_of(host.name, error) from error


def refusal_of(what: str, error: BaseException) -> LoadRefused:
    """Return the error that says what user code raised before anything was loaded, and where."""
    if isinstance(error, PhaseFailed):
        return LoadRefused(what=what, reason=str(error).rstrip("."))
    return LoadRefused(what=what, reason=f"{type(error).__name__}: {error}{place_of(error)}")


def own_definition(
    kind: StepKind, display: str, made: Any, make: Callable[[Host, Callable[[], Any]], Phase]
) -> Definition[Phase]:
    """Return a class or function of ours as something that is built by name.

    A class is called with its parameters; of a function that filters, those behind the first are.
    `make` is given what returns an object of the class, a new one with each call, or the function.
    """
    is_class = inspect.isclass(made)
    skipped = 0 if is_class or kind == "source" else 1
    parameters = _keywords(made, skip=skipped, what=f"{kind} {display}")
    own = {parameter.name for parameter in parameters}
    ours = [each for each in _HOST_PARAMETERS if each.name not in own]
    factory = Factory(kind, display, made)
    whole = not is_class

    def build(**values: Any) -> Phase:
        host, given = factory.host(values, ours)
        if whole and "whole_input" not in values:
            host = replace(host, limits=replace(host.limits, whole_input=True))
        return make(host, lambda: made(**given) if is_class else _part(made, given))

    return Definition(f"{kind} {display}", build, (*parameters, *ours))


def _part(function: Callable[..., Any], given: dict[str, object]) -> Callable[..., Any]:
    return partial(function, **given) if given else function


def _keywords(made: Any, *, skip: int, what: str) -> tuple[Parameter, ...]:
    try:
        given = list(inspect.signature(made).parameters.values())[skip:]
    except (TypeError, ValueError):  # built in, without a signature
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(_keyword(each, what) for each in given if each.kind in kinds)


def _keyword(parameter: inspect.Parameter, what: str) -> Parameter:
    required = parameter.default is parameter.empty
    known = _KINDS.get(_plain(parameter.annotation))
    if known is None and not required:
        known = _KINDS.get(type(parameter.default))
    if known is None:
        if parameter.annotation is parameter.empty:
            known = str
        else:
            raise LoadRefused(
                what=what,
                reason=f"its parameter {parameter.name} is none of str, int, float, bool, "
                "datetime.timedelta",
            )
    return Parameter(parameter.name, known, required)


def _plain(annotation: object) -> object:
    text = annotation if isinstance(annotation, str) else None
    if text is not None:
        return text.replace("| None", "").replace("None |", "").strip()
    arguments = [each for each in getattr(annotation, "__args__", ()) if each is not type(None)]
    return arguments[0] if len(arguments) == 1 else annotation


def _limits(values: Mapping[str, object]) -> Limits:
    limits = Limits(patience_seconds=progress.limits().call_s)
    whole, patience, chunk = (values.get(parameter.name) for parameter in _HOST_PARAMETERS)
    if whole is not None:
        limits = replace(limits, whole_input=bool(whole))
    if patience is not None:
        limits = replace(limits, patience_seconds=cast("dt.timedelta", patience).total_seconds())
    if chunk is not None:
        limits = replace(limits, chunk_bytes=max(1, cast("int", chunk)))
    return limits
