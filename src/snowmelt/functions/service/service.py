"""Remote service: functions by name, dispatch of requests, and DDL for callers.

Durations are strings such as `"25s"`, numbers of seconds, or timedeltas.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    ExternalFunction,
    NullInputAction,
    Volatility,
    format_create_function,
)
from snowmelt.functions.errors import (
    BatchInvalid,
    BatchTooLarge,
    DeclarationInvalid,
    FunctionNotFound,
)
from snowmelt.functions.service.deduplicator import BatchDeduplicator, MemoryStore
from snowmelt.functions.service.function_runner import (
    DeclaredFunction,
    FunctionOptions,
    InvocationMode,
    RowErrorMode,
    infer_signature,
)
from snowmelt.functions.service.request_response_types import (
    BatchResponseBody,
    ServiceRequest,
    ServiceResponse,
    error_to_response,
    make_error_response,
)
from snowmelt.functions.signature import parse_arguments
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names
from snowmelt.functions.wire.messages import MAX_RESPONSE_BYTES
from snowmelt.functions.wire.values import Formats
from snowmelt.json import exact
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES

if TYPE_CHECKING:
    from snowmelt.functions.service.asgi import AsgiApp
    from snowmelt.functions.service.deduplicator import BatchStore

_Function = TypeVar("_Function", bound=Callable[..., Any])
Duration = str | float | dt.timedelta

_DEFAULT_THREADS = 32
_MIN_COMPRESSED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size limits in bytes: of a decompressed request, and of a response before compression."""

    request_bytes: int = 64 * 1024 * 1024
    reply_bytes: int = MAX_RESPONSE_BYTES


@dataclass(slots=True, kw_only=True)
class ServiceOptions:
    """Options for all functions of a service.

    `content_md5` adds a checksum to responses, which increases the time per response by a tenth.
    `debug` includes the texts of exceptions in errors. These may contain row values.
    """

    content_md5: bool = True
    debug: bool = False
    limits: Limits = field(default_factory=Limits)
    formats: Formats = field(default_factory=Formats)


class RemoteService:
    """A service with functions that SQL calls."""

    def __init__(
        self,
        name: str,
        *,
        max_concurrency: int | None = None,
        deadline: Duration | None = None,
        keep: Duration = "12h",
        store: BatchStore | None = None,
        options: ServiceOptions | None = None,
    ) -> None:
        """Create a service without functions.

        Args:
            name: Name of the service.
            max_concurrency: Maximum number of concurrent batches. Others get status 429.
            deadline: Time after which a caller gets status 202 and polls. None: never. Use slightly
                less than the limit of the gateway, such as `"25s"`.
            keep: Time for which a response is stored for repeated attempts.
            store: Store of responses. None: a `MemoryStore`.
            options: Options for all functions.
        """
        self.name = name
        self.options = options or ServiceOptions()
        self.functions: dict[str, DeclaredFunction] = {}
        self.store: BatchStore = MemoryStore() if store is None else store
        self._deadline_s = None if deadline is None else parse_duration(deadline)
        self._retention_s = parse_duration(keep)
        self._max_concurrency = max_concurrency
        self._executor = ThreadPoolExecutor(
            max_workers=max_concurrency or _DEFAULT_THREADS, thread_name_prefix=f"functions-{name}"
        )
        self._deduplicator = BatchDeduplicator(self.store, max_concurrency=max_concurrency)

    @overload
    def function(self, work: _Function, /) -> _Function: ...
    @overload
    def function(
        self,
        work: None = None,
        /,
        *,
        name: str | None = None,
        mode: str = "row",
        arguments: Sequence[str] | None = None,
        returns: str | None = None,
        **options: Any,
    ) -> Callable[[_Function], _Function]: ...

    def function(
        self,
        work: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        mode: str = "row",
        arguments: Sequence[str] | None = None,
        returns: str | None = None,
        **options: Any,
    ) -> Any:
        """Declare a function, as `@svc.function` or with options.

        Args:
            work: The function, if the decorator is used without options.
            name: Name in SQL. None: the Python name.
            mode: `row` calls it per row, `batch` with a list per argument, `arrow` with an Arrow array
                per argument; `async` per row, and the caller polls.
            arguments: SQL types of the arguments. None: use the annotations.
            returns: SQL type of the result. None: use the annotation.
            **options: `blocking=False` for a function that only computes: it runs on the event loop,
                not in a thread. `deadline` and `keep` as for the service. `on_error`: result of a failed
                row for callers without row errors: `fail` fails the batch, `null` returns NULL, `value`
                returns an object with the error. `rows_at_once`: concurrent rows of an `async def` (16).
                `immutable`, `max_batch_rows` and `comment` are part of the statement of `create_sql`.

        Raises:
            DeclarationInvalid: If the declaration is invalid or the name is taken.
        """

        def declare(call: _Function) -> _Function:
            known_as = name or call.__name__
            if known_as.upper() in self.functions:
                raise DeclarationInvalid(reason=f"function {known_as} already exists")
            try:
                settled = self._resolve_options(InvocationMode(mode), dict(options))
            except (TypeError, ValueError) as error:
                raise DeclarationInvalid(reason=f"{known_as}: {error}") from None
            signature, context_at = infer_signature(
                call,
                known_as,
                is_columnar=settled.mode in {InvocationMode.BATCH, InvocationMode.ARROW},
                arguments=arguments,
                returns=returns,
            )
            by_value = settled.on_error is RowErrorMode.VALUE
            if by_value and signature.returns.kind not in SEMI_STRUCTURED_TYPES:
                raise DeclarationInvalid(
                    reason=f"{known_as}: errors as values need a VARIANT as result"
                )
            self.functions[known_as.upper()] = DeclaredFunction(
                call, signature, context_at, settled, self.options.formats
            )
            return call

        return declare if work is None else declare(work)

    def _resolve_options(self, mode: InvocationMode, options: dict[str, Any]) -> FunctionOptions:
        deadline = options.pop("deadline", None)
        deadline_s = self._deadline_s if deadline is None else parse_duration(deadline)
        keep = options.pop("keep", None)
        return FunctionOptions(
            mode=mode,
            deadline_s=0.0 if mode is InvocationMode.ASYNC else deadline_s,
            keep_s=self._retention_s if keep is None else parse_duration(keep),
            on_error=RowErrorMode(options.pop("on_error", RowErrorMode.FAIL)),
            debug=self.options.debug,
            **options,
        )

    async def handle_request(self, request: ServiceRequest) -> ServiceResponse:
        """Return the response to a request. Never raises an error."""
        try:
            answer = await self._dispatch_request(request)
        except Exception as error:  # noqa: BLE001 - everything becomes an answer
            answer = error_to_response(error, debug=self.options.debug)
        headers = {"content-type": "application/json"}
        body = answer.body
        if self.options.content_md5:
            headers["content-md5"] = compression.compute_content_md5(body)
        if len(body) >= _MIN_COMPRESSED_BYTES:
            encoding = compression.negotiate_encoding(request.headers.get("accept-encoding"))
            if encoding is not None:
                body = compression.compress(body, encoding)
                headers["content-encoding"] = encoding
        if answer.retry_after_s is not None:
            headers["retry-after"] = str(max(round(answer.retry_after_s), 0))
        return ServiceResponse(answer.status, body, headers)

    async def _dispatch_request(self, request: ServiceRequest) -> BatchResponseBody:
        if request.method == "GET":
            return await self._handle_get(request)
        if request.method != "POST":
            return make_error_response(
                405, "method_refused", "Use POST for batches and GET for polls."
            )
        function = self._get_function(request)
        limit = self.options.limits.request_bytes
        body = compression.decompress(
            request.body, request.headers.get("content-encoding"), max_bytes=limit
        )
        said = names.decode_header(request.headers, names.SIGNATURE)
        arguments = None if said is None else parse_arguments(said)
        declared = len(function.signature.arguments)
        if arguments is not None and len(arguments) != declared:
            raise BatchInvalid(
                reason=f"its signature has {len(arguments)} arguments, {function.name} has {declared}"
            )

        async def work() -> BatchResponseBody:
            try:
                answer = await function.run_batch(body, request.headers, self._executor)
                most = self.options.limits.reply_bytes
                if len(answer.body) > most:
                    raise BatchTooLarge(what="reply", limit=most)  # noqa: TRY301 - answered alike
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                return error_to_response(error, debug=self.options.debug)
            return answer

        return await self._deduplicator.run_batch(
            _make_batch_key(function, request),
            body,
            work,
            runs_inline=function.runs_inline,
            deadline_s=function.options.deadline_s,
            keep_s=function.options.keep_s,
        )

    async def _handle_get(self, request: ServiceRequest) -> BatchResponseBody:
        if names.BATCH_ID not in request.headers:
            listed = [
                {"name": each.name, "declaration": each.signature.format_ddl().replace("\n", " ")}
                for each in self.functions.values()
            ]
            return BatchResponseBody(
                200, exact.serialize_json({"service": self.name, "functions": listed})
            )
        key = _make_batch_key(self._get_function(request), request)
        answer = None if key is None else await self._deduplicator.poll(key)
        if answer is None:
            return make_error_response(404, "batch_not_found", "Unknown batch ID.")
        return answer

    def _find_function(self, path: str, headers: Mapping[str, str]) -> DeclaredFunction | None:
        """Find a function by the last segment of the path, or else by the header with the name."""
        found = self.functions.get(path.rstrip("/").rpartition("/")[2].upper())
        if found is None:
            said = names.decode_header(headers, names.FUNCTION_NAME)
            if said is None and len(self.functions) == 1:
                return next(iter(self.functions.values()))
            # The header may contain a qualified name. Its last part is the function's name.
            found = self.functions.get((said or "").rpartition(".")[2].strip('"').upper())
        return found

    def _get_function(self, request: ServiceRequest) -> DeclaredFunction:
        found = self._find_function(request.path, request.headers)
        if found is None:
            raise FunctionNotFound
        return found

    def asgi(self) -> AsgiApp:
        """Return the service as an ASGI application."""
        from snowmelt.functions.service.asgi import AsgiApp

        return AsgiApp(
            self.handle_request,
            max_body_bytes=self.options.limits.request_bytes,
            responds_immediately=self._responds_immediately,
        )

    def _responds_immediately(self, path: str, headers: Mapping[str, str]) -> bool:
        function = self._find_function(path, headers)
        return function is not None and function.runs_inline and not self.store.blocking

    def lambda_handler(self) -> Callable[[dict[str, Any], object], dict[str, Any]]:
        """Return a handler for AWS Lambda: REST and HTTP APIs, load balancers, function URLs.

        Raises:
            DeclarationInvalid: If a function may respond with 202. Lambda stops an instance after
                the response, and other instances do not know its batches.
        """
        from snowmelt.functions.service.cloud_handlers import make_lambda_handler

        later = [
            each.name for each in self.functions.values() if each.options.deadline_s is not None
        ]
        if later:
            raise DeclarationInvalid(
                reason=f"{', '.join(later)} may respond with 202 and continue, which AWS Lambda "
                "does not support. Serve with `asgi()`, or omit mode async and deadline"
            )
        return make_lambda_handler(self.handle_request)

    def azure_function(self) -> Callable[[Any], Any]:
        """Return `main(req)` for Azure Functions. Its deployment requires azure-functions."""
        from snowmelt.functions.service.cloud_handlers import make_azure_function

        return make_azure_function(self.handle_request)

    def cloud_function(self) -> Callable[[Any], tuple[bytes, int, dict[str, str]]]:
        """Return an HTTP function for Google Cloud. It receives Flask's request."""
        from snowmelt.functions.service.cloud_handlers import make_google_cloud_function

        return make_google_cloud_function(self.handle_request)

    def create_sql(self, url: str, integration: str, *, replace: bool = True) -> str:
        """Return the CREATE statements that callers run to declare all functions."""
        return "\n\n".join(
            make_create_statement(each, url, integration, replace=replace)
            for each in self.functions.values()
        )


def _make_batch_key(function: DeclaredFunction, request: ServiceRequest) -> str | None:
    batch_id = request.headers.get(names.BATCH_ID)
    return None if not batch_id else f"{function.name}/{batch_id}"


def make_create_statement(
    function: DeclaredFunction, url: str, integration: str, *, replace: bool
) -> str:
    """Return a CREATE EXTERNAL FUNCTION statement for Snowmelt and Snowflake."""
    signature, options = function.signature, function.options
    definition = ExternalFunction(
        signature=signature,
        url=f"{url.rstrip('/')}/{signature.name}",
        integration=integration,
        null_input=NullInputAction.STRICT if signature.is_strict else NullInputAction.CALLED,
        volatility=Volatility.IMMUTABLE if options.immutable else Volatility.VOLATILE,
        comment=DEFAULT_COMMENT if options.comment is None else options.comment,
        max_batch_rows=options.max_batch_rows,
    )
    return format_create_function(definition, signature.name, integration, replace=replace)


_DURATION_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*\Z")
_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(duration: str | float | dt.timedelta) -> float:
    """Convert `"25s"`, `"10m"`, `"12h"`, a number of seconds, or a timedelta to seconds.

    Raises:
        DeclarationInvalid: If the value is none of these, or negative.
    """
    if isinstance(duration, dt.timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, str):
        match = _DURATION_PATTERN.match(duration)
        if match is None:
            raise DeclarationInvalid(
                reason=f"invalid duration {duration!r}; expected a form such as 25s, 10m or 12h"
            )
        return float(match[1]) * _SECONDS_PER_UNIT[match[2]]
    if duration < 0:
        raise DeclarationInvalid(reason="a duration is negative")
    return float(duration)
