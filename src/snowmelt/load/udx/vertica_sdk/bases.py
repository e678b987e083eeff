"""Base classes of user code, all optional: objects are recognized by their methods.

Names of query functions exist so that a file that defines some beside its filters can be imported.
"""

from __future__ import annotations

from typing import Any

from snowmelt.load.udx.vertica_sdk.states import UDXType

# ruff: noqa: N802, N803, A002, ARG002 - the SDK's names and what it passes


class UDXObject:
    """An object that is set up, used, and set up again."""

    _canceled = False

    def setup(self, srvInterface: Any, *more: Any) -> None:
        """Begin a stream; whatever an earlier one left must be gone after it."""

    def destroy(self, srvInterface: Any, *more: Any) -> None:
        """End a stream; the object may be set up again."""

    def cancel(self, srvInterface: Any) -> None:
        """Stop soon; it comes from another thread while another method runs."""
        self._canceled = True

    def isCanceled(self) -> bool:
        """Tell whether the load was cancelled."""
        return self._canceled

    def mark_canceled(self) -> None:
        """Make `isCanceled` true, for the host: classes have a `cancel` of their own."""
        self._canceled = True

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
        """Return what it makes."""
        return UDXType.INVALID_UDX


class FilterFactory(UDXFactory):
    """Makes filters."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once for a statement."""

    def getUDXFactoryType(self) -> UDXType:
        """Return what it makes."""
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
        """Return what it makes."""
        return UDXType.LOAD_PARSER


class SourceFactory(UDXFactory):
    """Makes sources."""

    def plan(self, serverInterface: Any, planContext: Any) -> None:
        """Check the parameters, once for a statement."""

    def getUDXFactoryType(self) -> UDXType:
        """Return what it makes."""
        return UDXType.LOAD_SOURCE


# --- Names for functions of queries, so that a file which holds some beside its filters loads.
#
# A load calls none of them.


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
