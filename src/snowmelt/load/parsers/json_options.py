"""The JSON parsers by their options."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.load.parsers.json_choices import JsonChoices


@dataclass(frozen=True, slots=True)
class FlexJsonOptions(JsonChoices):
    """FJSONPARSER's."""


@dataclass(frozen=True, slots=True)
class JsonOptions(FlexJsonOptions):
    """Ours: a value that does not fit its column rejects the record."""

    reject_on_materialized_type_error: bool = True


@dataclass(frozen=True, slots=True)
class KafkaJsonOptions(FlexJsonOptions):
    """KAFKAJSONPARSER's, which is asked for one message after the other."""

    enforce_length: bool = False
