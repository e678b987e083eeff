"""Request and response translators of a function, for services with a different format.

A request translator receives `{"body": {"data": …}, "serviceUrl": …, "contextHeaders": {…}}`. It
returns an object with these optional fields: `body` (JSON, or a string that is sent unchanged;
without it, the POST has no body), `urlSuffix` (percent-encoded, appended to the function's URL) and
`translatorData`. A response translator receives `{"body": …, "translatorData": …}`, in which a body
that is not JSON is a string. It returns `{"body": {"data": …}}` with the same row numbers in the
same order.

Errors name the line and function in the translator. They contain data only if the options allow
payload in errors.

Translators run in child processes, because these can be stopped, and because a crash then fails
only one call. A regular expression or a deeply nested document can block or crash a JavaScript
engine despite the engine's own limits. JavaScript translators of all functions share processes,
because each object gets a new context. Up to four idle processes are kept. A Python translator has
one process per task, because its module keeps globals. `serve` is the main function of the child
process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeAlias

import msgspec

from snowmelt.errors import MissingExtra
from snowmelt.functions.caller.plan import CallPlan
from snowmelt.functions.caller.translator_runtime import (
    PythonTranslatorRunner,
    TranslatorError,
    TranslatorHandler,
    TranslatorOutput,
    TranslatorRunner,
    make_translator_runner,
)
from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.functions.errors import TranslatorFailed, UrlRefused
from snowmelt.functions.urls import is_url_extension, parse_url
from snowmelt.json import exact

_CONTEXT_HEADER_PREFIX = "SF_CONTEXT_"
_MAX_DETAIL_CHARS = 200  # Used only if errors may contain payload.


class TranslatorPair:
    """Request and response translator of a function. Either may be missing. Thread-safe."""

    def __init__(self, plan: CallPlan) -> None:
        """Prepare the translators.

        Raises:
            MissingExtra: If a translator is JavaScript and the engine is not installed.
        """
        self._function = plan.function.signature.name
        self._url = plan.function.url
        self._shows_payload = plan.options.debug_payload
        self._request_runner = _make_runner(plan.request_translator)
        self._response_runner = _make_runner(plan.response_translator)
        self._names = {
            "request": _get_translator_name(plan.request_translator),
            "response": _get_translator_name(plan.response_translator),
        }
        self._request_fields = exact.serialize_json(
            {
                "serviceUrl": plan.function.url,
                "contextHeaders": {
                    _CONTEXT_HEADER_PREFIX + key: text for key, text in plan.context.items()
                },
            }
        )

    def close(self) -> None:
        """End the processes of Python translators."""
        for run in (self._request_runner, self._response_runner):
            if isinstance(run, TranslatorProcess):
                run.close()

    def translate_request(self, body: bytes) -> TranslatorOutput:
        """Return the translated request.

        Raises:
            TranslatorFailed: If the translator failed, or if the URL with its suffix does not
                extend the function's URL.
        """
        if self._request_runner is None:
            return TranslatorOutput(body)
        try:
            translated = self._request_runner(body, self._request_fields)
            if translated.url_suffix:
                base, whole = parse_url(self._url), parse_url(self._url + translated.url_suffix)
                # The allowed prefixes are checked later, before the call.
                if not is_url_extension(whole, base):
                    raise TranslatorError(  # noqa: TRY301 - named below
                        "its urlSuffix leads away from the function's URL: it begins with / or ?, "
                        "or with & where the URL has a query"
                    )
        except UrlRefused as error:
            failure = TranslatorError(f"the URL with its urlSuffix {error.fields['reason']}")
            raise self._make_translator_failed("request", failure) from None
        except TranslatorError as failure:
            raise self._make_translator_failed("request", failure) from failure
        return translated

    def translate_response(self, body: bytes, translator_data: bytes | None) -> bytes:
        """Return the translated response body.

        Raises:
            TranslatorFailed: If the translator failed.
        """
        if self._response_runner is None:
            return body
        others = b"{}" if translator_data is None else b'{"translatorData":%b}' % translator_data
        try:
            translated = self._response_runner(body, others)
        except TranslatorError as failure:
            raise self._make_translator_failed("response", failure) from failure
        if translated.body is None:
            raise self._make_translator_failed("response", TranslatorError("it returned no body"))
        return translated.body

    def _make_translator_failed(self, which: str, failure: TranslatorError) -> TranslatorFailed:
        reason = str(failure)
        if self._shows_payload and failure.detail:
            reason = f"{reason}: {failure.detail[:_MAX_DETAIL_CHARS]}"
        return TranslatorFailed(
            function=self._function,
            which=which,
            translator=self._names[which],
            reason=reason.rstrip("."),
        )


def _make_runner(translator: Translator | TranslatorHandler | None) -> TranslatorRunner | None:
    if translator is None:
        return None
    if not isinstance(translator, Translator):
        return PythonTranslatorRunner(lambda: translator)
    if translator.language is TranslatorLanguage.PYTHON:
        return TranslatorProcess(translator)
    if importlib.util.find_spec("quickjs") is None:
        raise MissingExtra(what="A translator in JavaScript", package="quickjs", extra="functions")
    return partial(run_javascript_translator, translator)


def _get_translator_name(translator: Translator | TranslatorHandler | None) -> str:
    if isinstance(translator, Translator):
        return translator.name
    return getattr(translator, "__qualname__", type(translator).__name__)


# Limit of processor time for one object. The engine's own limit of 10 s usually applies first.
_MAX_CPU_S = 11.0
# Limit of the time from request to result, for a Python translator that waits.
_MAX_WALL_S = 60.0
# Limit of address space. In addition, the engine limits a script to 256 MiB.
_MAX_PROCESS_BYTES = 2 * 1024 * 1024 * 1024
_MAX_IDLE_PROCESSES = 4
_EXIT_TIMEOUT_S = 5.0
_CHILD_PROGRAM = """
import sys
descriptor, sys.path[:] = int(sys.argv[1]), sys.argv[2:]
from snowmelt.functions.caller.translators import serve
serve(descriptor)
"""


@dataclass(frozen=True, slots=True)
class _TranslatorJob:
    translator: Translator
    body: bytes | None
    others: bytes
    max_cpu_s: float


class _JobFailure(msgspec.Struct, tag=True):
    reason: str
    detail: str


_JobOutcome: TypeAlias = TranslatorOutput | _JobFailure


class _ChildProcess:
    """Child process that translates one object at a time. It is discarded after a failure."""

    def __init__(self) -> None:
        ours, its = Pipe()
        with its:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, and a program of ours
                [sys.executable, "-c", _CHILD_PROGRAM, str(its.fileno()), *sys.path],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection, self._process = ours, process
        self._finalizer = weakref.finalize(self, _kill_process, process, ours)

    def run(self, job: _TranslatorJob, max_wall_s: float) -> _JobOutcome:
        """Return the translated object.

        Raises:
            TranslatorError: If the process was stopped or exited.
        """
        # Send with a timeout: sending blocks if the process does not read.
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        watchdog = threading.Timer(max_wall_s, stop)
        watchdog.daemon = True
        watchdog.start()
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(job))
            if not self._connection.poll(max_wall_s):
                raise TranslatorError(f"it took longer than {max_wall_s:g} s")
            answer = self._connection.recv_bytes()
        except (OSError, EOFError):
            if late.is_set():
                raise TranslatorError(f"it took longer than {max_wall_s:g} s") from None
            raise TranslatorError(_describe_exit(self._process, job)) from None
        finally:
            watchdog.cancel()
        result: _JobOutcome = msgspec.msgpack.decode(answer, type=_JobOutcome)
        return result

    def close(self) -> None:
        """Stop the process."""
        self._finalizer()


def _describe_exit(process: subprocess.Popen[bytes], job: _TranslatorJob) -> str:
    try:
        code = process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "its process closed the connection"
    if code == -signal.SIGPROF:
        return f"it took longer than {job.max_cpu_s:g} s of processing time"
    if code >= 0:
        return f"its process ended with exit status {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"its process crashed ({name}), as values that nest too deeply can make it"
    return f"its process crashed (signal {-code})"


def _kill_process(process: subprocess.Popen[bytes], connection: Connection[Any, Any]) -> None:
    connection.close()
    process.kill()
    process.wait()


# By process ID, because a forked process must not use the children of its parent.
_idle_processes: dict[int, list[_ChildProcess]] = {}
_idle_lock = threading.Lock()


def run_javascript_translator(
    translator: Translator,
    body: bytes | None,
    other_fields: bytes,
    *,
    max_cpu_s: float = _MAX_CPU_S,
    max_wall_s: float = _MAX_WALL_S,
) -> TranslatorOutput:
    """Return the result of a JavaScript translator.

    Args:
        translator: The translator.
        body: JSON, or text that is not JSON. None: no body.
        other_fields: The other fields of the object, as JSON.
        max_cpu_s: Limit of processor time in seconds.
        max_wall_s: Limit of the time from request to result in seconds.

    Raises:
        TranslatorError: If it failed, or exceeded a limit.
    """
    with _idle_lock:
        idle = _idle_processes.setdefault(os.getpid(), [])
        child = idle.pop() if idle else None
    child = child or _ChildProcess()
    try:
        result = child.run(_TranslatorJob(translator, body, other_fields, max_cpu_s), max_wall_s)
    except BaseException:
        child.close()
        raise
    with _idle_lock:
        kept = isinstance(result, TranslatorOutput) and len(idle) < _MAX_IDLE_PROCESSES
        if kept:
            idle.append(child)
    if not kept:
        child.close()
    return _unwrap_outcome(result)


class TranslatorProcess:
    """Python translator in its own process, which runs until `close`. Thread-safe."""

    def __init__(
        self,
        translator: Translator,
        *,
        max_cpu_s: float = _MAX_CPU_S,
        max_wall_s: float = _MAX_WALL_S,
    ) -> None:
        self._translator = translator
        self._max_cpu_s, self._max_wall_s = max_cpu_s, max_wall_s
        self._child: _ChildProcess | None = None
        self._lock = threading.Lock()

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return the result for an object, given as its `body` and its other fields in JSON.

        Raises:
            TranslatorError: If it failed, or exceeded a limit.
        """
        job = _TranslatorJob(self._translator, body, other_fields, self._max_cpu_s)
        with self._lock:
            child = self._child = self._child or _ChildProcess()
            try:
                result = child.run(job, self._max_wall_s)
            except BaseException:
                self._child = None
                child.close()
                raise
        return _unwrap_outcome(result)

    def close(self) -> None:
        """Stop the process."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


def _unwrap_outcome(outcome: _JobOutcome) -> TranslatorOutput:
    if isinstance(outcome, _JobFailure):
        raise TranslatorError(outcome.reason, outcome.detail)
    return outcome


def serve(descriptor: int) -> None:
    """Run translators for the process at the other end of a socket, until it closes the socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_PROCESS_BYTES, _MAX_PROCESS_BYTES))
    # Redirect the output of a translator's print calls to the log of the parent.
    os.dup2(2, 1)
    jobs = msgspec.msgpack.Decoder(_TranslatorJob)
    get_runner = lru_cache(maxsize=64)(make_translator_runner)
    with Connection(descriptor) as connection, contextlib.suppress(EOFError):
        while True:
            job = jobs.decode(connection.recv_bytes())
            # Restore the signal's default action, which ends the process even inside the engine.
            signal.setitimer(signal.ITIMER_PROF, job.max_cpu_s)
            try:
                result: _JobOutcome = get_runner(job.translator)(job.body, job.others)
            except TranslatorError as failure:
                result = _JobFailure(str(failure), failure.detail)
            except MemoryError:
                result = _JobFailure("it needed too much memory", "")
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(msgspec.msgpack.encode(result))
