"""The SDK's states: what `process` returns and what it is given."""

# ruff: noqa: N802 - the SDK's names

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from snowmelt.load.phase_states import InputStateCode as InputCode
from snowmelt.load.phase_states import PhaseStateCode as StreamCode


class ReturnedState:
    """What `process` returns: a state, with the rejected record where it is REJECT."""

    __slots__ = ("code", "rejected")

    def __init__(self, code: StreamCode, rejected: object = None) -> None:
        self.code = code
        self.rejected = rejected

    def __eq__(self, other: object) -> bool:
        """Tell whether both are the same state, however it is written."""
        if isinstance(other, ReturnedState):
            return self.code is other.code
        return isinstance(other, StreamCode) and self.code is other

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return self.code.name


class StreamState:
    """What `process` returns. REJECT is called with the rejected record."""

    INPUT_NEEDED: ClassVar[ReturnedState] = ReturnedState(StreamCode.INPUT_NEEDED)
    OUTPUT_NEEDED: ClassVar[ReturnedState] = ReturnedState(StreamCode.OUTPUT_NEEDED)
    DONE: ClassVar[ReturnedState] = ReturnedState(StreamCode.DONE)
    KEEP_GOING: ClassVar[ReturnedState] = ReturnedState(StreamCode.KEEP_GOING)
    CHUNK_ALIGNED: ClassVar[ReturnedState] = ReturnedState(StreamCode.CHUNK_ALIGNED)

    @staticmethod
    def REJECT(rejected_record: object) -> ReturnedState:
        """Say that what was read last is a record that becomes no row."""
        return ReturnedState(StreamCode.REJECT, rejected_record)


class _NamedState(StrEnum):
    """Text that is its own name: what user code compares with `==`."""

    def __repr__(self) -> str:
        return self.name


class InputState(_NamedState):
    """What is known of the input; the rules are those of `snowmelt.load.phase_states.InputStateCode`."""

    OK = "OK"
    END_OF_FILE = "END_OF_FILE"
    END_OF_CHUNK = "END_OF_CHUNK"
    START_OF_PORTION = "START_OF_PORTION"
    END_OF_PORTION = "END_OF_PORTION"

    @property
    def code(self) -> InputCode:
        """The same state with its number."""
        return InputCode[self.name]


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


def parse_returned_state(value: object) -> ReturnedState | None:
    """Return a state as user code may return it; None where it is none."""
    if isinstance(value, ReturnedState):
        return value
    if isinstance(value, StreamCode):
        return ReturnedState(value)
    # Without a record: the object is asked for it.
    return ReturnedState(StreamCode.REJECT) if value is StreamState.REJECT else None
