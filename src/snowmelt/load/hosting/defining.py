"""What a name in a library stands for: a factory of the SDK's kind, or a class or function of ours."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from snowmelt.errors import LoadRefused
from snowmelt.load.hosting.binding import (
    PARSER_PLAN,
    PARSER_PREPARE,
    PLAN,
    PROCESS,
    RETURN_TYPE,
    SETUP,
    bound,
)
from snowmelt.load.hosting.factories import Factory, own_definition, refused
from snowmelt.load.hosting.machine import HostedFilter
from snowmelt.load.hosting.own import own_filter
from snowmelt.load.hosting.parsing import HostedEitherParser, HostedParser, HostedRecordParser
from snowmelt.load.hosting.progress import is_ctrl_c
from snowmelt.load.hosting.record_machine import hosted_record_filter
from snowmelt.load.hosting.sourcing import OwnSource, hosted_source
from snowmelt.load.hosting.vertica.columns import SizedColumnTypes
from snowmelt.load.hosting.vertica.parameters import PerColumnParamReader
from snowmelt.load.parsed import Target
from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.load.definition import Definition
    from snowmelt.load.hosting.guest import Host
    from snowmelt.load.hosting.parsing import Prepare
    from snowmelt.load.hosting.vertica.server import PlanContext, ServerInterface
    from snowmelt.load.phases import (
        Filter,
        Parser,
        RecordFilter,
        RecordParser,
        RecordSource,
        Source,
    )


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
