"""Builds phases of a load for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snowmelt.load.phase_definition import PhaseDefinition


def built(definition: PhaseDefinition[Any] | None, parameters: Mapping[str, object]) -> Any:
    """Build the phase of a definition, which must not be None."""
    assert definition is not None
    return definition.build_phase(parameters)
