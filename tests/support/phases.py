"""Build the phases of a load that the tests name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snowmelt.load.phase_definition import PhaseDefinition


def built(definition: PhaseDefinition[Any] | None, parameters: Mapping[str, object]) -> Any:
    """Return the phase of a definition that must be there."""
    assert definition is not None
    return definition.build_phase(parameters)
