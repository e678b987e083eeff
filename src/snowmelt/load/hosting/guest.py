"""One object of user code as the host holds it: made, set up, called, destroyed, used again."""

from __future__ import annotations

import contextlib
import threading
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import PhaseFailed
from snowmelt.load.hosting.binding import SETUP, bound
from snowmelt.load.hosting.calling import Blocked, Caller, Cancelled, Escaped
from snowmelt.load.hosting.feed import InputRefused, Limits
from snowmelt.load.hosting.progress import is_ctrl_c
from snowmelt.load.hosting.vertica.buffers import BufferMisused, Undecodable
from snowmelt.load.hosting.vertica.server import ServerInterface
from snowmelt.load.hosting.vertica.states import Answer, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
