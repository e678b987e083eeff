"""Life cycle of one user-defined object: creation, setup, calls on a thread, destruction, reuse.

`UdxThread` runs the calls with a timeout, so that no call blocks the host forever.

`bind_method` matches arguments to parameters by name, because documentation and existing code
disagree on the order and number of arguments. A parameter whose name indicates a role receives the
argument of that role. The other parameters receive the remaining arguments in the usual order.

`CallLoop` handles returned states: more input, more output space, wait, end, or error.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.udx.input_window import InputLimitExceeded, InputWindow, UdxLimits
from snowmelt.load.udx.shared_progress_page import is_ctrl_c
from snowmelt.load.udx.vertica_sdk.bases import (
    InputState,
    PhaseStateCode,
    ReturnedState,
    parse_returned_state,
)
from snowmelt.load.udx.vertica_sdk.buffers import BufferMisused, InputUndecodable, OutputBuffer
from snowmelt.load.udx.vertica_sdk.server_interface import ServerInterface

_STOP_GRACE_S = 1.0
_WAIT_SLICE_S = 0.5
_STOP_CALL: tuple[None, tuple[()]] = (None, ())
_CANCEL_SIGNAL = object()


class UdxTimeout(Exception):
    """A call did not return within `call_timeout_s`."""


class UdxCancelled(Exception):
    """The load was cancelled."""


class UdxExitRequested(Exception):
    """User code raised KeyboardInterrupt, SystemExit or GeneratorExit."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(str(raised))
        self.raised = raised


class UdxThread:
    """A daemon thread that runs calls for one other thread, one at a time.

    If a call exceeds `call_timeout_s` or is cancelled, `on_stop` runs concurrently with it. If the
    call has not returned 1 s later, its thread is abandoned.
    """

    def __init__(self, call_timeout_s: float, on_stop: Callable[[], object]) -> None:
        self._call_timeout_s = call_timeout_s
        self._on_stop = on_stop
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any] | None, tuple[Any, ...]]]
        self._calls = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_cancelled = False
        self._abandoned = False
        self.busy = False
        self._thread = threading.Thread(
            target=self._run_calls, name="snowmelt-user-code", daemon=True
        )
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the thread; return its result or raise its error.

        Raises:
            UdxTimeout: If the call exceeds `call_timeout_s`.
            UdxCancelled: If `cancel` was called.
        """
        if self._is_cancelled:
            raise UdxCancelled
        self.busy = True
        self._calls.put((function, arguments))
        left, answer = self._call_timeout_s, None
        while answer is None:
            # Wait in intervals of `_WAIT_SLICE_S`, because Python handles a signal that arrives
            # before a wait only after it.
            wait = min(left, _WAIT_SLICE_S)
            try:
                answer = self._results.get(timeout=wait)
            except queue.Empty:
                left -= wait
                if left <= 0:
                    self.stop_running_call()
                    raise UdxTimeout from None
        if answer is _CANCEL_SIGNAL:
            self.stop_running_call()
            raise UdxCancelled
        self.busy = False
        result, error = answer
        if error is not None:
            raise error
        return result

    def stop_running_call(self) -> bool:
        """Call `on_stop` to end a running call. Return True if the call ended within 1 s."""
        if not self.busy or self._abandoned:
            return not self.busy
        # `on_stop` is user code, so it may block.
        threading.Thread(target=self._call_on_stop, name="snowmelt-cancel", daemon=True).start()
        grace_s = min(_STOP_GRACE_S, self._call_timeout_s)
        with contextlib.suppress(queue.Empty):
            while self._results.get(timeout=grace_s) is _CANCEL_SIGNAL:
                pass
            self.busy = False
        self._abandoned = self.busy
        return not self.busy

    def cancel(self) -> None:
        """Cancel the running call, or else the next one. Thread-safe."""
        self._is_cancelled = True
        self._results.put(_CANCEL_SIGNAL)

    def close(self) -> None:
        """End the thread after the running call."""
        self._calls.put(_STOP_CALL)

    def _call_on_stop(self) -> None:
        with contextlib.suppress(Exception):
            self._on_stop()

    def _run_calls(self) -> None:
        while True:
            function, arguments = self._calls.get()
            if function is None:
                return
            answer: tuple[Any, BaseException | None]
            try:
                answer = (function(*arguments), None)
            except BaseException as error:  # noqa: BLE001 - `call` raises it
                answer = (None, error if isinstance(error, Exception) else UdxExitRequested(error))
            # Release the arguments while waiting for the next call.
            del function, arguments
            self._results.put(answer)
            del answer


SETUP_ROLES = ("server",)
PROCESS_ROLES = ("server", "input", "state", "output")
PROCESS_RECORDS_ROLES = ("server", "input", "input_lengths", "state", "output", "output_lengths")
PARSER_SETUP_ROLES = ("server", "returns")
PARSE_ROLES = ("server", "input", "state", "writer")
PARSE_RECORDS_ROLES = ("server", "input", "input_lengths", "state", "writer")
CHUNK_ROLES = ("server", "input", "state")
SOURCE_PROCESS_ROLES = ("server", "output")
SOURCE_RECORDS_ROLES = ("server", "output", "output_lengths")
DESTROY_ROLES = ("server", "session")
PARSER_DESTROY_ROLES = ("server", "returns", "session")
PLAN_ROLES = ("server", "plan")
PARSER_PLAN_ROLES = ("server", "columns", "plan")
PARSER_PREPARE_ROLES = ("server", "columns", "plan", "returns")
RETURN_TYPE_ROLES = ("server", "columns", "plan", "arguments", "returns")
PARAMETER_TYPE_ROLES = ("server", "parameters")

# Words that indicate a role. A parameter has the first role whose words occur in its name.
_ROLE_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("output_lengths", ("out", "len")),
    ("input_lengths", ("len",)),
    ("state", ("state",)),
    ("columns", ("column",)),
    ("session", ("session",)),
    ("plan", ("plan",)),
    ("returns", ("return",)),
    ("arguments", ("arg",)),
    ("parameters", ("param",)),
    ("server", ("srv",)),
    ("server", ("server",)),
    ("writer", ("writer",)),
    ("writer", ("stream",)),
    ("output", ("out",)),
    ("input", ("in",)),
    ("input", ("buf",)),
)


def bind_method(user_object: object, method_name: str, roles: Sequence[str]) -> Callable[..., Any]:
    """Return a method as a function of one argument per role, in the order of `roles`.

    Raises:
        LoadRefused: If the method does not exist, lacks `self`, or requires more arguments.
    """
    method = getattr(user_object, method_name, None)
    what = f"{type(user_object).__name__}.{method_name}"
    if not callable(method):
        raise LoadRefused(what=what, reason="method not found")
    function = inspect.getattr_static(user_object, method_name, None)
    if inspect.isfunction(function) and method_name not in vars(user_object):
        first = next(iter(inspect.signature(function).parameters), None)
        if first is not None and _find_role(first, ("server",)) is not None:
            raise LoadRefused(what=what, reason=f"expected first parameter `self`, got {first}")
    places = _match_arguments_to_roles(method, roles, what)
    if places == list(range(len(roles))):
        return method  # type: ignore[no-any-return]
    return lambda *arguments: method(*[arguments[place] for place in places])


def _match_arguments_to_roles(
    method: Callable[..., Any], roles: Sequence[str], label: str
) -> list[int]:
    everything = list(range(len(roles)))
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # A method of a C extension may have no signature.
        return everything
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return everything
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in taken if parameter.default is parameter.empty]
    if len(required) > len(roles):
        names = ", ".join(parameter.name for parameter in required)
        raise LoadRefused(
            what=label,
            reason=f"it requires {len(required)} arguments ({names}), "
            f"expected at most {len(roles)} ({', '.join(roles)})",
        )
    found = [_find_role(parameter.name, roles) for parameter in taken[: len(roles)]]
    named = [role for role in found if role is not None]
    if len(set(named)) < len(named):
        return everything[: len(taken)]
    left = iter([role for role in roles if role not in named])
    return [roles.index(role if role is not None else next(left)) for role in found]


def call_optional(user_object: object, method_name: str) -> Any:
    """Call a method without arguments. Return None if it does not exist."""
    method = getattr(user_object, method_name, None)
    return method() if callable(method) else None


def _find_role(name: str, roles: Sequence[str]) -> str | None:
    low = name.lower()
    for role, words in _ROLE_WORDS:
        if role in roles and all(word in low for word in words):
            return role
    return None


# Prefix of the names of user code modules.
LIBRARY_MODULE_PREFIX = "snowmelt_library_"
_HOST_MODULE_PREFIX = "snowmelt.load."
_FINAL_CALL_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class UdxHost:
    """Context and limits of one user-defined phase.

    `name` has the phase and its parameters, for the `phase` field of errors.
    """

    name: str
    server: ServerInterface = field(default_factory=ServerInterface)
    limits: UdxLimits = field(default_factory=UdxLimits)
    clock: Clock = field(default_factory=SystemClock)

    def make_error(self, reason: str, *, offset: int | None = None) -> PhaseFailed:
        """Return an error of this phase. `offset` is the byte offset in its input."""
        return PhaseFailed(reason=reason, offset=offset, phase=self.name)


class UdxInstance:
    """An object of user code, created on first use and again after a failure."""

    def __init__(self, host: UdxHost, make: Callable[[], object]) -> None:
        self.host = host
        self._make = make
        self._user_object: object = None
        self._thread: UdxThread | None = None
        self._lock = threading.Lock()
        self.is_cancelled = False
        self._cancel_requested = False

    @property
    def user_object(self) -> object:
        """The object. Created on first use."""
        if self._user_object is None:
            self._user_object = self._call_translating_errors("prepare()", self._make, ())
        return self._user_object

    def cancel(self) -> None:
        """Cancel the running stream and all later ones. Thread-safe."""
        with self._lock:
            self.is_cancelled = True
            caller = self._thread
        if caller is not None:
            caller.cancel()
            # The user's `cancel` may block; this method must not.
            threading.Thread(
                target=self._request_cancel, name="snowmelt-cancel", daemon=True
            ).start()

    @contextlib.contextmanager
    def running_stream(
        self, destroy_roles: Sequence[str], setup_roles: Sequence[str] = SETUP_ROLES, *more: object
    ) -> Iterator[None]:
        """Set the object up for one stream, and destroy it when the stream ends or fails.

        `more` has the arguments after the server interface.
        """
        with self._lock:
            caller = self._thread = UdxThread(self.host.limits.call_timeout_s, self._request_cancel)
        server = self.host.server
        end = (server, *more, server.session_params)
        try:
            self.call_if_defined("setup", setup_roles, server, *more)
            try:
                yield
            except BaseException:
                # Errors of `destroy` must not replace the first error.
                if caller.stop_running_call():
                    self._destroy_quietly(destroy_roles, *end)
                raise
            self.call_if_defined("destroy", destroy_roles, *end)
        except BaseException as error:
            if caller.busy or not isinstance(error, GeneratorExit):
                self._user_object = None
            raise
        finally:
            with self._lock:
                self._thread = None
            caller.close()

    def bind_state_method(
        self, method_name: str, roles: Sequence[str]
    ) -> Callable[..., ReturnedState]:
        """Return a method that returns a state, with its arguments bound by role."""
        method = bind_method(self.user_object, method_name, roles)

        def call(*arguments: object) -> ReturnedState:
            value = self._call_translating_errors(f"{method_name}()", method, arguments)
            answer = parse_returned_state(value)
            if answer is None:
                raise self.host.make_error(
                    f"{method_name}() returned {value!r}, expected a StreamState"
                )
            return answer

        return call

    def call_if_defined(self, method_name: str, roles: Sequence[str], *arguments: object) -> Any:
        """Call a method and return its result, or None if it does not exist."""
        method = getattr(self.user_object, method_name, None)
        if not callable(method):
            return None
        if roles:
            method = bind_method(self.user_object, method_name, roles)
        return self._call_translating_errors(f"{method_name}()", method, arguments)

    def _call_translating_errors(
        self, label: str, function: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:
        host, caller = self.host, self._thread
        if self.is_cancelled:
            raise host.make_error("it was cancelled")
        try:
            return function(*arguments) if caller is None else caller.call(function, *arguments)
        except PhaseFailed:
            raise
        except UdxTimeout:
            seconds = host.limits.call_timeout_s
            raise host.make_error(f"{label} has not returned for {seconds:g} seconds") from None
        except UdxCancelled:
            raise host.make_error("it was cancelled") from None
        except InputUndecodable as error:
            raise host.make_error(str(error), offset=error.offset) from error
        except (BufferMisused, InputLimitExceeded) as error:
            raise host.make_error(f"{label}: {error}") from error
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            error = error.raised if isinstance(error, UdxExitRequested) else error
            text = f"{label} raised {type(error).__name__}: {error}{describe_user_code_line(error)}"
            raise host.make_error(text) from error

    def _destroy_quietly(self, roles: Sequence[str], *arguments: object) -> None:
        """Destroy the object after an error, waiting at most 1 s."""
        made = self._user_object
        if made is None or not callable(getattr(made, "destroy", None)):
            return
        caller = UdxThread(_FINAL_CALL_TIMEOUT_S, lambda: None)
        try:
            with contextlib.suppress(Exception):
                caller.call(bind_method(made, "destroy", roles), *arguments)
        finally:
            caller.close()

    def _request_cancel(self) -> None:
        with self._lock:
            if self._cancel_requested or self._user_object is None:
                return
            self._cancel_requested = True
        mark = getattr(self._user_object, "mark_canceled", None)
        if mark is not None:
            mark()
        if callable(getattr(self._user_object, "cancel", None)):
            with contextlib.suppress(Exception):
                bind_method(self._user_object, "cancel", SETUP_ROLES)(self.host.server)


def describe_user_code_line(error: BaseException) -> str:
    """Return the last traceback location in user code, or else the last one outside the host."""
    frames = list(traceback.walk_tb(error.__traceback__))
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    for begins in (True, False):
        for module, (frame, line) in zip(reversed(modules), reversed(frames), strict=True):
            if module.startswith(LIBRARY_MODULE_PREFIX) or not (
                begins or module.startswith(_HOST_MODULE_PREFIX)
            ):
                return f" ({frame.f_code.co_filename}, line {line})"
    return ""


_MIN_WAIT_S = 0.001
_MAX_WAIT_S = 0.05


class CallLoop:
    """Handler of the states that the calls of one stream return."""

    def __init__(
        self, instance: UdxInstance, window: InputWindow | None, output: OutputBuffer | None
    ) -> None:
        self._host = instance.host
        self._instance = instance
        self._window = window
        self._output = output
        self._wait_s = _MIN_WAIT_S
        self._idle_since: float | None = None

    def fetch_first(self) -> None:
        """Fetch the input of the first call."""
        if self._window is not None:
            self._fetch(self._window.fetch_first)

    def handle_state(self, code: PhaseStateCode, *, has_read: bool, has_written: bool) -> bool:
        """Handle a state. Return True if the stream has ended.

        Raises:
            PhaseFailed: If the state is not allowed here, or allows no further progress.
        """
        if code is PhaseStateCode.DONE:
            return True
        progress, window, output = has_read or has_written, self._window, self._output
        if code is PhaseStateCode.KEEP_GOING and not progress:
            self._wait_for_progress()
            return False
        self._idle_since, self._wait_s = None, _MIN_WAIT_S
        if code is PhaseStateCode.OUTPUT_NEEDED:
            if output is not None and not output.renew_space(larger=not progress):
                raise self._host.make_error(
                    f"it requested more output space than {output.size} bytes without reading or writing"
                )
        elif code is PhaseStateCode.INPUT_NEEDED and window is not None:
            if window.reported_state is not InputState.END_OF_FILE:
                self._fetch(lambda: window.fetch_more(made_progress=has_read))
            elif not progress:
                raise self._host.make_error(
                    f"it requested input after the end of its input, "
                    f"with {window.buffer.remaining} bytes unread"
                )
        elif code is not PhaseStateCode.KEEP_GOING:
            raise self._host.make_error(f"it returned {code.name}, which is not allowed here")
        return False

    def _wait_for_progress(self) -> None:
        clock, timeout_s = self._host.clock, self._host.limits.call_timeout_s
        now = clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > timeout_s:
            raise self._host.make_error(
                f"it has returned KEEP_GOING for {timeout_s:g} seconds without reading or writing"
            )
        if self._instance.is_cancelled:
            raise self._host.make_error("it was cancelled")
        clock.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _MAX_WAIT_S)

    def _fetch(self, fetch: Callable[[], None]) -> None:
        try:
            fetch()
        except InputUndecodable as error:
            raise self._host.make_error(str(error), offset=error.offset) from error
        except InputLimitExceeded as error:
            raise self._host.make_error(str(error)) from error
