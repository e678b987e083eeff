"""Base classes of user code, and the states that it returns and receives.

The base classes are optional, because objects are recognized by their methods. The classes of query
functions do nothing. They exist so that a file with filters and query functions can be imported.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, ClassVar


class PhaseStateCode(IntEnum):
    """States that `process` returns, with the numbers of Vertica's SDK.

    INPUT_NEEDED: provide more input after the unread input. OUTPUT_NEEDED: collect the output and
    call again. DONE: the stream has ended, even if input remains. REJECT: the data read last is one
    rejected record (parsers only). KEEP_GOING: no progress is possible now; call again later.
    CHUNK_ALIGNED: the input's offset is at the end of a record (chunkers only).
    """

    INPUT_NEEDED = 0
    OUTPUT_NEEDED = 1
    DONE = 2
    REJECT = 3
    KEEP_GOING = 4
    CHUNK_ALIGNED = 5


class ReturnedState:
    """The result of `process`: a state, and the rejected record of REJECT."""

    __slots__ = ("code", "rejected")

    def __init__(self, code: PhaseStateCode, rejected: object = None) -> None:
        self.code = code
        self.rejected = rejected

    def __eq__(self, other: object) -> bool:
        """Return True if both have the same code, as a ReturnedState or a PhaseStateCode."""
        if isinstance(other, ReturnedState):
            return self.code is other.code
        return isinstance(other, PhaseStateCode) and self.code is other

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return self.code.name


class StreamState:
    """States that `process` may return. REJECT may be called with the rejected record."""

    INPUT_NEEDED: ClassVar = ReturnedState(PhaseStateCode.INPUT_NEEDED)
    OUTPUT_NEEDED: ClassVar = ReturnedState(PhaseStateCode.OUTPUT_NEEDED)
    DONE: ClassVar = ReturnedState(PhaseStateCode.DONE)
    KEEP_GOING: ClassVar = ReturnedState(PhaseStateCode.KEEP_GOING)
    CHUNK_ALIGNED: ClassVar = ReturnedState(PhaseStateCode.CHUNK_ALIGNED)

    @staticmethod
    def REJECT(rejected_record: object) -> ReturnedState:
        """Reject the data read last, which is one record."""
        return ReturnedState(PhaseStateCode.REJECT, rejected_record)


def parse_returned_state(value: object) -> ReturnedState | None:
    """Convert a result of user code to a state, or return None if it is not one."""
    if isinstance(value, ReturnedState):
        return value
    if isinstance(value, PhaseStateCode):
        return ReturnedState(value)
    # REJECT without a record: the host calls `getRejectedRecord`.
    return ReturnedState(PhaseStateCode.REJECT) if value is StreamState.REJECT else None


class _NamedState(StrEnum):
    """A state. Its value is its name, because user code compares states with `==`."""

    def __repr__(self) -> str:
        return self.name


class InputState(_NamedState):
    """The state of the input that `process` receives.

    OK: more may follow. END_OF_FILE: the input ends with the stream's last byte; may repeat with
    empty input. END_OF_CHUNK: the input ends at a record end. START_OF_PORTION: the input starts
    within the file; a parser skips to the first record end. END_OF_PORTION: a parser completes the
    open record with the bytes that follow, then stops.
    """

    OK = "OK"
    END_OF_FILE = "END_OF_FILE"
    END_OF_CHUNK = "END_OF_CHUNK"
    START_OF_PORTION = "START_OF_PORTION"
    END_OF_PORTION = "END_OF_PORTION"


class UDXType(_NamedState):
    """The kind of object that a factory creates."""

    AGGREGATE = "AGGREGATE"
    ANALYTIC = "ANALYTIC"
    FILESYSTEM = "FILESYSTEM"
    INVALID_UDX = "INVALID_UDX"
    LOAD_FILTER = "LOAD_FILTER"
    LOAD_PARSER = "LOAD_PARSER"
    LOAD_SOURCE = "LOAD_SOURCE"
    MULTI_TRANSFORM = "MULTI_TRANSFORM"
    SCALAR = "SCALAR"
    TRANSFORM = "TRANSFORM"
    TYPE = "TYPE"


class UDXObject:
    """Base class of objects that process one stream at a time."""

    _canceled = False

    def setup(self, srvInterface: Any, *more: Any) -> None:
        """Start a stream. Must reset the state of earlier streams."""

    def destroy(self, srvInterface: Any, *more: Any) -> None:
        """End a stream. The host may call `setup` again."""

    def mark_canceled(self) -> None:
        """Set `isCanceled`, even if a class overrides `cancel`. For the host only."""
        self._canceled = True

    def cancel(self, srvInterface: Any) -> None:
        """Request a stop. The host calls it from another thread during other methods."""
        self._canceled = True

    def isCanceled(self) -> bool:
        return self._canceled

    def useSideChannel(self) -> bool:
        """Return True to receive `processWithMetadata` instead of `process`."""
        return False


class UDFilter(UDXObject):
    """Base class of filters, which convert bytes to bytes."""

    def processWithMetadata(
        self, srvInterface: Any, input: Any, input_lengths: Any, input_state: Any, output: Any,
        output_lengths: Any,
    ) -> Any:  # fmt: skip
        """Filter records. By default, discard record boundaries and call `process`."""
        process: Any = getattr(self, "process")  # noqa: B009 - user code defines it
        input_lengths.read()
        return process(srvInterface, input, input_state, output)


class UDParser(UDXObject):
    """Base class of parsers, which convert bytes to rows."""

    def getRejectedRecord(self) -> Any:
        """Return the rejected record if REJECT was returned without one."""
        return None


class UDChunker(UDXObject):
    """Base class of chunkers, which move the input's offset to a record end."""


class UDSource(UDXObject):
    """Base class of sources, which produce bytes."""

    def getSize(self) -> int | None:
        """Return the size in bytes, or None if it is unknown."""
        return None

    def getUri(self) -> str:
        """Return the name of the input in messages."""
        return ""


class UDXFactory:
    """Base class of factories. A factory has no state; the host uses one instance."""

    def getParameterType(self, serverInterface: Any, parameterTypes: Any) -> None:
        """Declare the parameters."""

    def getPerInstanceResources(self, serverInterface: Any, resources: Any) -> None:
        """Declare resources of an object. Loads do not call it."""

    def getPrototype(self, serverInterface: Any, argTypes: Any, returnType: Any) -> None:
        """Declare the arguments of a function."""

    def getReturnType(self, serverInterface: Any, argTypes: Any, returnType: Any) -> None:
        """Declare the result of a function."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.INVALID_UDX


class FilterFactory(UDXFactory):
    """Base class of factories for filters."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once per statement."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_FILTER


class ParserFactory(UDXFactory):
    """Base class of factories for parsers."""

    def plan(self, serverInterface: Any, perColumnParamReader: Any, planContext: Any) -> None:
        """Check the parameters, once per statement."""

    def getParserReturnType(
        self, serverInterface: Any, perColumnParamReader: Any, planContext: Any, argTypes: Any,
        returnTypes: Any,
    ) -> None:  # fmt: skip
        """Declare the parsed columns. Default: the columns of the load."""
        for place in range(argTypes.getColumnCount()):
            returnTypes.addColumn(argTypes.getColumnType(place), argTypes.getColumnName(place))

    def prepareChunker(
        self, serverInterface: Any, perColumnParamReader: Any, planContext: Any, returnType: Any
    ) -> Any:
        """Return a chunker, or None."""
        return None

    def isChunkerApportionable(self) -> bool:
        """Return True if a chunker can start within a file."""
        return False

    def canApportionParser(self) -> bool:
        """Return True if a parser can start within a file."""
        return False

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_PARSER


class SourceFactory(UDXFactory):
    """Base class of factories for sources."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once per statement."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_SOURCE


# Classes of query functions. Loads do not call them.
BlockReader = BlockWriter = PartitionReader = PartitionWriter = UDXObject
ScalarFunction = TransformFunction = TransformFunctionPhase = UDXObject
ScalarFunctionFactory = TransformFunctionFactory = MultiPhaseTransformFunctionFactory = UDXFactory
