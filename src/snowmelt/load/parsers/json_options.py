"""What FJSONPARSER and KAFKAJSONPARSER let one choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlexJsonOptions:
    """FJSONPARSER's options with its defaults, and its per-message twin's.

    A value that does not fit its column is NULL unless `reject_on_materialized_type_error`.
    After a record that is not JSON reading goes on behind the next line end, or behind the next
    `record_terminator`; with a terminator each record ends at one, so that files can be split.
    """

    flatten_maps: bool = True
    flatten_arrays: bool = False
    reject_on_duplicate: bool = False
    reject_on_empty_key: bool = False
    omit_empty_keys: bool = False
    record_terminator: str = ""
    reject_on_materialized_type_error: bool = False
    start_point: str = ""
    start_point_occurrence: int = 1
    suppress_nonalphanumeric_key_chars: bool = False
    key_separator: str = "."
    skip: int = 0
    max_record: int = 0


@dataclass(frozen=True, slots=True)
class JsonOptions(FlexJsonOptions):
    """Ours: a value that does not fit its column rejects the record."""

    reject_on_materialized_type_error: bool = True


@dataclass(frozen=True, slots=True)
class KafkaJsonOptions(FlexJsonOptions):
    """KAFKAJSONPARSER's, which is asked for one message after the other."""

    enforce_length: bool = False
