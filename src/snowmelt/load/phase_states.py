"""States that a user-defined phase returns and receives, with the numbers of Vertica's SDK."""

from __future__ import annotations

from enum import IntEnum


class PhaseStateCode(IntEnum):
    """What `process` returns.

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


class InputStateCode(IntEnum):
    """What is known of the input that `process` is given.

    OK: more may come. END_OF_FILE: the last byte of the input is the last of the stream; may be
    said again, with nothing in it. END_OF_CHUNK: the input ends at the end of a record.
    START_OF_PORTION: the input does not begin where the file does, so that a parser skips to the
    first end of a record. END_OF_PORTION: the record that was begun is to be finished with the
    bytes that follow, and then nothing more.
    """

    OK = 0
    END_OF_FILE = 1
    END_OF_CHUNK = 2
    START_OF_PORTION = 3
    END_OF_PORTION = 4
