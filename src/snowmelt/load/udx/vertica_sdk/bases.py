"""Base classes of user code, and the states that it returns and receives.

The base classes are optional: objects are recognized by their methods. Names of query functions
exist so that a file that defines some beside its filters can be imported.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, ClassVar


class PhaseStateCode(IntEnum):
    """What `process` returns, with the numbers of Vertica's SDK.

    INPUT_NEEDED: give more input; what was not read stays in front. OUTPUT_NEEDED: take what was
    written and call again. DONE: the stream has ended, even if input remains. REJECT: what was
    read last is one rejected record (parsers only). KEEP_GOING: nothing can be done now, call
    again soon. CHUNK_ALIGNED: the input's offset is at the end of a record (chunkers only).
    """

    INPUT_NEEDED = 0
    OUTPUT_NEEDED = 1
    DONE = 2
    REJECT = 3
    KEEP_GOING = 4
    CHUNK_ALIGNED = 5


class ReturnedState:
    """What `process` returns: a state, with the rejected record where it is REJECT."""

    __slots__ = ("code", "rejected")

    def __init__(self, code: PhaseStateCode, rejected: object = None) -> None:
        self.code = code
        self.rejected = rejected

    def __eq__(self, other: object) -> bool:
        """Tell whether both are the same state, however it is written."""
        if isinstance(other, ReturnedState):
            return self.code is other.code
        return isinstance(other, PhaseStateCode) and self.code is other

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return self.code.name


class StreamState:
    """What `process` returns. REJECT is called with the rejected record."""

    INPUT_NEEDED: ClassVar = ReturnedState(PhaseStateCode.INPUT_NEEDED)
    OUTPUT_NEEDED: ClassVar = ReturnedState(PhaseStateCode.OUTPUT_NEEDED)
    DONE: ClassVar = ReturnedState(PhaseStateCode.DONE)
    KEEP_GOING: ClassVar = ReturnedState(PhaseStateCode.KEEP_GOING)
    CHUNK_ALIGNED: ClassVar = ReturnedState(PhaseStateCode.CHUNK_ALIGNED)

    @staticmethod
    def REJECT(rejected_record: object) -> ReturnedState:
        """Say that what was read last is a record that becomes no row."""
        return ReturnedState(PhaseStateCode.REJECT, rejected_record)


def parse_returned_state(value: object) -> ReturnedState | None:
    """Return a state as user code may return it; None where it is none."""
    if isinstance(value, ReturnedState):
        return value
    if isinstance(value, PhaseStateCode):
        return ReturnedState(value)
    # Without a record: the object is asked for it.
    return ReturnedState(PhaseStateCode.REJECT) if value is StreamState.REJECT else None


class _NamedState(StrEnum):
    """Text that is its own name: what user code compares with `==`."""

    def __repr__(self) -> str:
        return self.name


class InputState(_NamedState):
    """What is known of the input that `process` is given.

    OK: more may come. END_OF_FILE: the last byte of the input is the last of the stream; may be
    said again, with nothing in it. END_OF_CHUNK: the input ends at the end of a record.
    START_OF_PORTION: the input does not begin where the file does, so that a parser skips to the
    first end of a record. END_OF_PORTION: the record that was begun is to be finished with the
    bytes that follow, and then nothing more.
    """

    OK = "OK"
    END_OF_FILE = "END_OF_FILE"
    END_OF_CHUNK = "END_OF_CHUNK"
    START_OF_PORTION = "START_OF_PORTION"
    END_OF_PORTION = "END_OF_PORTION"


class UDXType(_NamedState):
    """What a factory makes."""

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
    """An object that is set up, used, and set up again."""

    _canceled = False

    def setup(self, srvInterface: Any, *more: Any) -> None:
        """Begin a stream; whatever an earlier one left must be gone after it."""

    def destroy(self, srvInterface: Any, *more: Any) -> None:
        """End a stream; the object may be set up again."""

    def mark_canceled(self) -> None:
        """Make `isCanceled` true, for the host: classes have a `cancel` of their own."""
        self._canceled = True

    def cancel(self, srvInterface: Any) -> None:
        """Stop soon; it comes from another thread while another method runs."""
        self._canceled = True

    def isCanceled(self) -> bool:
        return self._canceled

    def useSideChannel(self) -> bool:
        """Tell whether `processWithMetadata` is called instead of `process`."""
        return False


class UDFilter(UDXObject):
    """Bytes in, bytes out."""

    def processWithMetadata(
        self, srvInterface: Any, input: Any, input_lengths: Any, input_state: Any, output: Any,
        output_lengths: Any,
    ) -> Any:  # fmt: skip
        """Filter records; by default their limits are lost."""
        process: Any = getattr(self, "process")  # noqa: B009 - user code brings it
        input_lengths.read()
        return process(srvInterface, input, input_state, output)


class UDParser(UDXObject):
    """Bytes in, rows out."""

    def getRejectedRecord(self) -> Any:
        """Return the record that REJECT speaks of, where it was returned without one."""
        return None


class UDChunker(UDXObject):
    """Finds ends of records: moves the input's offset behind one."""


class UDSource(UDXObject):
    """Bytes out."""

    def getSize(self) -> int | None:
        """Return the number of bytes, None where it is not known."""
        return None

    def getUri(self) -> str:
        """Return what messages call it."""
        return ""


class UDXFactory:
    """Makes objects; there is one of it, without a state."""

    def getParameterType(self, serverInterface: Any, parameterTypes: Any) -> None:
        """Declare the parameters."""

    def getPerInstanceResources(self, serverInterface: Any, resources: Any) -> None:
        """Say what an object needs; nobody asks."""

    def getPrototype(self, serverInterface: Any, argTypes: Any, returnType: Any) -> None:
        """Declare the arguments of a function."""

    def getReturnType(self, serverInterface: Any, argTypes: Any, returnType: Any) -> None:
        """Declare the result of a function."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.INVALID_UDX


class FilterFactory(UDXFactory):
    """Makes filters."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once for a statement."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_FILTER


class ParserFactory(UDXFactory):
    """Makes parsers."""

    def plan(self, serverInterface: Any, perColumnParamReader: Any, planContext: Any) -> None:
        """Check the parameters, once for a statement."""

    def getParserReturnType(
        self, serverInterface: Any, perColumnParamReader: Any, planContext: Any, argTypes: Any,
        returnTypes: Any,
    ) -> None:  # fmt: skip
        """Declare the columns that are parsed; by default those of the load."""
        for place in range(argTypes.getColumnCount()):
            returnTypes.addColumn(argTypes.getColumnType(place), argTypes.getColumnName(place))

    def prepareChunker(
        self, serverInterface: Any, perColumnParamReader: Any, planContext: Any, returnType: Any
    ) -> Any:
        """Make a chunker; by default there is none."""
        return None

    def isChunkerApportionable(self) -> bool:
        """Tell whether a chunker can begin in the middle of a file."""
        return False

    def canApportionParser(self) -> bool:
        """Tell whether a parser can begin in the middle of a file."""
        return False

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_PARSER


class SourceFactory(UDXFactory):
    """Makes sources."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once for a statement."""

    def getUDXFactoryType(self) -> UDXType:
        return UDXType.LOAD_SOURCE


# Names for functions of queries, so that a file which holds some beside its filters loads; a load
# calls none of them.


class BlockReader:
    """Arguments of a scalar function."""


class BlockWriter:
    """Results of a scalar function."""


class PartitionReader(BlockReader):
    """Rows that a transform function reads."""


class PartitionWriter(BlockWriter):
    """Rows that a transform function writes."""


class ScalarFunction(UDXObject):
    """One value from each row."""


class ScalarFunctionFactory(UDXFactory):
    """Makes scalar functions."""


class TransformFunction(UDXObject):
    """Rows from rows."""


class TransformFunctionFactory(UDXFactory):
    """Makes transform functions."""


class TransformFunctionPhase:
    """One step of a transform function."""


class MultiPhaseTransformFunctionFactory(UDXFactory):
    """Makes transform functions of several steps."""
