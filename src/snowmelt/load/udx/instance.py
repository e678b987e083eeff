"""One object of user code as the host holds it: made, set up, called, destroyed, used again."""

from __future__ import annotations

import contextlib
import inspect
import queue
import threading
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_states import StreamState
from snowmelt.load.udx.input_window import InputRefused, Limits
from snowmelt.load.udx.vertica_sdk.buffers import BufferMisused, Undecodable
from snowmelt.load.udx.vertica_sdk.server_interface import ServerInterface
from snowmelt.load.udx.vertica_sdk.states import Answer, answer_of
from snowmelt.load.udx.worker_progress import is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from snowmelt.load.udx.input_window import Window
    from snowmelt.load.udx.vertica_sdk.buffers import OutputBuffer

# --- Calls into user code, on a thread of their own, so that no call can hold the host for ever.

_GRACE_SECONDS = 1.0
_SLICE_SECONDS = 0.5
_STOP: tuple[None, tuple[()]] = (None, ())
_WAKE = object()


class Blocked(Exception):
    """A call did not return for as long as the host waits."""


class Cancelled(Exception):
    """The load was cancelled."""


class Escaped(Exception):
    """User code raised what Python itself ends by: KeyboardInterrupt, SystemExit, GeneratorExit."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(str(raised))
        self.raised = raised


class Caller:
    """One thread that makes calls, one after the other; for the use of one other thread.

    A call that lasts longer than `patience` seconds, or that goes on after `wake`, is told to stop
    by `on_stop`, which may run while the call does; a second later it is left alone. Its
    thread does not hold up the process's end.
    """

    def __init__(self, patience: float, on_stop: Callable[[], object]) -> None:
        self._patience = patience
        self._on_stop = on_stop
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any] | None, tuple[Any, ...]]]
        self._calls = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._woken = False
        self._abandoned = False
        self.busy = False
        self._thread = threading.Thread(target=self._work, name="snowmelt-user-code", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and return what it returns, or raise what it raises.

        Raises:
            Blocked: It did not return in time.
            Cancelled: `wake` was called.
        """
        if self._woken:
            raise Cancelled
        self.busy = True
        self._calls.put((function, arguments))
        try:
            result, error = self._answer(self._patience)
        except queue.Empty:
            self.stop()
            raise Blocked from None
        if error is not None:
            raise error
        return result

    def stop(self) -> bool:
        """Ask a running call to stop; tell whether it did so in time."""
        if not self.busy or self._abandoned:
            return not self.busy
        # It is user code, too: it may block, and what it raises helps nobody.
        asking = threading.Thread(target=self._ask, name="snowmelt-cancel", daemon=True)
        asking.start()
        with contextlib.suppress(queue.Empty):
            while self._results.get(timeout=min(_GRACE_SECONDS, self._patience)) is _WAKE:
                pass
            self.busy = False
        self._abandoned = self.busy
        return not self.busy

    def wake(self) -> None:
        """Make the call that runs, or else the next one, end as cancelled; from any thread."""
        self._woken = True
        self._results.put(_WAKE)

    def close(self) -> None:
        """End the thread as soon as no call runs."""
        self._calls.put(_STOP)

    def _answer(self, patience: float) -> Any:
        left = patience
        while True:
            # In slices: a signal that comes just before the wait begins is seen only after it.
            wait = min(left, _SLICE_SECONDS)
            try:
                answer = self._results.get(timeout=wait)
            except queue.Empty:
                left -= wait
                if left <= 0:
                    raise
                continue
            if answer is _WAKE:
                self.stop()
                raise Cancelled
            self.busy = False
            return answer

    def _ask(self) -> None:
        with contextlib.suppress(Exception):
            self._on_stop()

    def _work(self) -> None:
        while True:
            function, arguments = self._calls.get()
            if function is None:
                return
            answer: tuple[Any, BaseException | None]
            try:
                answer = (function(*arguments), None)
            except Exception as error:  # noqa: BLE001 - it is raised where the call was made
                answer = (None, error)
            except BaseException as error:  # noqa: BLE001
                answer = (None, Escaped(error))
            # What a call was given must not stay alive until the next one.
            del function, arguments
            self._results.put(answer)
            del answer


# --- Which argument goes where: methods of user code are called by what their parameters are called.
#
# Documentation and existing code disagree on orders and on how many arguments there are. A parameter
# whose name tells its role is given that; the others are given what is left, in the usual order.

SETUP = ("server",)
PROCESS = ("server", "input", "state", "output")
PROCESS_RECORDS = ("server", "input", "input_lengths", "state", "output", "output_lengths")
PARSER_SETUP = ("server", "returns")
PARSE = ("server", "input", "state", "writer")
PARSE_RECORDS = ("server", "input", "input_lengths", "state", "writer")
CHUNK = ("server", "input", "state")
ALIGN = CHUNK
SOURCE_PROCESS = ("server", "output")
SOURCE_RECORDS = ("server", "output", "output_lengths")
DESTROY = ("server", "session")
PARSER_DESTROY = ("server", "returns", "session")
PLAN = ("server", "plan")
PARSER_PLAN = ("server", "columns", "plan")
PARSER_PREPARE = ("server", "columns", "plan", "returns")
RETURN_TYPE = ("server", "columns", "plan", "arguments", "returns")
PARAMETER_TYPE = ("server", "parameters")

# A role is taken if all words of one of its lists are in the name; the first role that fits.
_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
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


def bound(owner: object, name: str, roles: Sequence[str]) -> Callable[..., Any]:
    """Return a method as a function of one argument for each role, in the order of `roles`.

    Raises:
        LoadRefused: The method does not exist, lacks `self`, or wants more than there is.
    """
    method = getattr(owner, name, None)
    what = f"{type(owner).__name__}.{name}"
    if not callable(method):
        raise LoadRefused(what=what, reason="there is no such method")
    _check_self(owner, name, what)
    places = _places(method, roles, what)
    if places == list(range(len(roles))):
        return method  # type: ignore[no-any-return]
    return lambda *arguments: method(*[arguments[place] for place in places])


def _places(method: Callable[..., Any], roles: Sequence[str], what: str) -> list[int]:
    everything = list(range(len(roles)))
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # written in another language, which does not tell
        return everything
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return everything
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in taken if parameter.default is parameter.empty]
    if len(required) > len(roles):
        raise LoadRefused(
            what=what,
            reason=f"it takes {len(required)} arguments ({_names(required)}), "
            f"but is given {len(roles)} ({', '.join(roles)})",
        )
    found = [_role(parameter.name, roles) for parameter in taken[: len(roles)]]
    named = [role for role in found if role is not None]
    if len(set(named)) < len(named):
        return everything[: len(taken)]
    left = iter([role for role in roles if role not in named])
    return [roles.index(role if role is not None else next(left)) for role in found]


def _role(name: str, roles: Sequence[str]) -> str | None:
    low = name.lower()
    return next(
        (role for role, words in _WORDS if role in roles and all(word in low for word in words)),
        None,
    )


def _check_self(owner: object, name: str, what: str) -> None:
    function = inspect.getattr_static(owner, name, None)
    if not inspect.isfunction(function) or name in vars(owner):
        return
    names = list(inspect.signature(function).parameters)
    if names and _role(names[0], ("server",)) is not None:
        raise LoadRefused(what=what, reason=f"its first parameter is {names[0]}; `self` is missing")


def _names(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(parameter.name for parameter in parameters)


LIBRARY_PREFIX = "snowmelt_library_"
"""How names of modules begin that hold code of users."""

_OURS = "snowmelt.load."
_LAST_CALL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Host:
    """What user code is given, and how long it may take.

    Errors carry `name`, the phase with its parameters; the text names it where a load places it.
    """

    name: str
    server: ServerInterface = field(default_factory=ServerInterface)
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=SystemClock)

    def failed(self, reason: str, *, offset: int | None = None) -> PhaseFailed:
        """Return an error with the byte of the phase's input, if that is known."""
        return PhaseFailed(reason=reason, offset=offset, phase=self.name)


class Guest:
    """An object of user code. It is made when it is first needed, and again after a failure."""

    def __init__(self, host: Host, make: Callable[[], object]) -> None:
        self.host = host
        self._make = make
        self._object: object = None
        self._caller: Caller | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._asked = False

    @property
    def made(self) -> object:
        """The object, which is made if there is none."""
        if self._object is None:
            self._object = self._guarded("prepare()", self._make, ())
        return self._object

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def cancel(self) -> None:
        """End the stream, from any thread, and every later one as it begins."""
        with self._lock:
            self._cancelled = True
            caller = self._caller
        if caller is not None:
            caller.wake()
            # It may block, and whoever cancels should not.
            threading.Thread(target=self._ask_to_stop, name="snowmelt-cancel", daemon=True).start()

    @contextlib.contextmanager
    def stream(
        self, destroy: Sequence[str], setup: Sequence[str] = SETUP, *more: object
    ) -> Iterator[None]:
        """Set the object up for one stream, and destroy it at the end, however that comes.

        `more` are arguments behind the server's.
        """
        with self._lock:
            caller = self._caller = Caller(self.host.limits.patience_seconds, self._ask_to_stop)
        server = self.host.server
        end = (destroy, (server, *more, server.sessions))
        try:
            self._method("setup", setup, server, *more)
            try:
                yield
            except BaseException:
                # What went wrong first is what matters.
                if caller.stop():
                    self._destroy_quietly(*end)
                raise
            self._method("destroy", end[0], *end[1])
        except BaseException as error:
            if caller.busy or not isinstance(error, GeneratorExit):
                self._object = None
            raise
        finally:
            with self._lock:
                self._caller = None
            caller.close()

    def function(self, name: str, roles: Sequence[str]) -> Callable[..., Answer]:
        """Return a method that answers with a state, to be called by role."""
        method = bound(self.made, name, roles)

        def call(*arguments: object) -> Answer:
            value = self._guarded(f"{name}()", method, arguments)
            answer = answer_of(value)
            if answer is None:
                raise self.host.failed(f"{name}() returned {value!r}, which is no StreamState")
            return answer

        return call

    def ask(self, name: str, *arguments: object) -> Any:
        """Call a method that answers a question; None where there is no such method."""
        method = getattr(self.made, name, None)
        return self._guarded(f"{name}()", method, arguments) if callable(method) else None

    def _method(self, name: str, roles: Sequence[str], *arguments: object) -> None:
        if callable(getattr(self.made, name, None)):
            self._guarded(f"{name}()", bound(self.made, name, roles), arguments)

    def _guarded(
        self, what: str, function: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:
        host, caller = self.host, self._caller
        if self._cancelled:
            raise host.failed("it was cancelled")
        try:
            return function(*arguments) if caller is None else caller.call(function, *arguments)
        except PhaseFailed:
            raise
        except Blocked:
            seconds = host.limits.patience_seconds
            raise host.failed(f"{what} has not returned for {seconds:g} seconds") from None
        except Cancelled:
            raise host.failed("it was cancelled") from None
        except Undecodable as error:
            raise host.failed(str(error), offset=error.offset) from error
        except (BufferMisused, InputRefused) as error:
            raise host.failed(f"{what}: {error}") from error
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            error = error.raised if isinstance(error, Escaped) else error
            text = f"{what} raised {type(error).__name__}: {error}{place_of(error)}"
            raise host.failed(text) from error

    def _destroy_quietly(self, roles: Sequence[str], arguments: tuple[object, ...]) -> None:
        """Destroy after an error, also a cancel, for which nobody waits long."""
        made = self._object
        if made is None or not callable(getattr(made, "destroy", None)):
            return
        caller = Caller(_LAST_CALL_SECONDS, lambda: None)
        try:
            with contextlib.suppress(Exception):
                caller.call(bound(made, "destroy", roles), *arguments)
        finally:
            caller.close()

    def _ask_to_stop(self) -> None:
        with self._lock:
            if self._asked or self._object is None:
                return
            self._asked = True
        mark = getattr(self._object, "mark_canceled", None)
        if mark is not None:
            mark()
        if callable(getattr(self._object, "cancel", None)):
            with contextlib.suppress(Exception):  # what it raises helps nobody
                bound(self._object, "cancel", SETUP)(self.host.server)


def place_of(error: BaseException) -> str:
    """Return where in user code it was raised, or else the last place that is not the host's."""
    frames = list(traceback.walk_tb(error.__traceback__))
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    for begins in (True, False):
        for module, (frame, line) in zip(reversed(modules), reversed(frames), strict=True):
            if module.startswith(LIBRARY_PREFIX) or not (begins or module.startswith(_OURS)):
                return f" ({frame.f_code.co_filename}, line {line})"
    return ""


# --- What follows from a state: more input, room for output, waiting, the end, or an error.

_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05


class Flow:
    """Acts on the states that one stream's calls return."""

    def __init__(self, guest: Guest, feed: Window | None, output: OutputBuffer | None) -> None:
        self._host = guest.host
        self._guest = guest
        self._feed = feed
        self._output = output
        self._wait = _FIRST_WAIT
        self._idle_since: float | None = None

    def begin(self) -> None:
        """Fetch the first input."""
        if self._feed is not None:
            self._fetch(self._feed.begin)

    def after(self, code: StreamState, *, read: bool, wrote: bool) -> bool:
        """Do what a state asks for; tell whether the stream has ended.

        Raises:
            PhaseFailed: The state is not allowed here, or nothing will ever come of it.
        """
        if code is StreamState.DONE:
            return True
        if code is StreamState.KEEP_GOING:
            self._keep_going(progress=read or wrote)
            return False
        self._idle_since, self._wait = None, _FIRST_WAIT
        if code is StreamState.OUTPUT_NEEDED:
            self._room(progress=read or wrote)
        elif code is StreamState.INPUT_NEEDED and self._feed is not None:
            self._more(self._feed, read=read, wrote=wrote)
        else:
            raise self._host.failed(f"it returned {code.name}, which is not for it to return")
        return False

    def _more(self, feed: Window, *, read: bool, wrote: bool) -> None:
        if not feed.is_last:
            self._fetch(lambda: feed.more(moved=read))
        elif not (read or wrote):
            raise self._host.failed(
                f"it asked for input after the end of its input, "
                f"of which it has left {feed.buffer.remaining} bytes"
            )

    def _room(self, *, progress: bool) -> None:
        if self._output is not None and not self._output.renew(larger=not progress):
            raise self._host.failed(
                f"it asks for more room than {self._output.size} bytes, "
                f"and neither reads nor writes"
            )

    def _keep_going(self, *, progress: bool) -> None:
        clock, patience = self._host.clock, self._host.limits.patience_seconds
        if progress:
            self._idle_since, self._wait = None, _FIRST_WAIT
            return
        now = clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > patience:
            raise self._host.failed(
                f"it has returned KEEP_GOING for {patience:g} seconds without reading or writing"
            )
        if self._guest.cancelled:
            raise self._host.failed("it was cancelled")
        clock.sleep(self._wait)
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _fetch(self, fetch: Callable[[], None]) -> None:
        try:
            fetch()
        except Undecodable as error:
            raise self._host.failed(str(error), offset=error.offset) from error
        except InputRefused as error:
            raise self._host.failed(str(error)) from error
