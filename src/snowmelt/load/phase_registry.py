"""Registry of the sources, filters and parsers that a load may call by name.

User-defined functions take precedence over built-in ones of the same name, so that a new built-in
function does not change existing statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from snowmelt.errors import LoadRefused
from snowmelt.load.phase_definition import PhaseDefinition
from snowmelt.load.task import LoadStep, StepKind
from snowmelt.load.udx import shared_progress_page

_BUILT_IN_PACKAGES: dict[StepKind, str] = {
    "source": "snowmelt.load.sources",
    "filter": "snowmelt.load.filters",
    "parser": "snowmelt.load.parsers",
}


@dataclass(frozen=True, slots=True)
class UserLoadFunction:
    """A function of CREATE FILTER, PARSER or SOURCE: its SQL name, and a factory in a library."""

    kind: StepKind
    name: str
    factory: str
    library: str


@dataclass(frozen=True, slots=True)
class LoadFunctions:
    """The functions that a load may call. Picklable.

    `libraries` maps library names to files by name.
    """

    user_functions: tuple[UserLoadFunction, ...] = ()
    libraries: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    def make_phase(self, step: LoadStep) -> Any:
        """Build the source, filter or parser of a step.

        Raises:
            LoadRefused: If the name is unknown, or a parameter is invalid.
        """
        with self._tracking_user_code(step):
            return self.find_phase_definition(step).build_phase(
                {**step.parameters, **step.planned_values}
            )

    def is_user_function(self, step: LoadStep) -> bool:
        """Return True if a step is a user's function, not a built-in one."""
        return self._find_user_function(step) is not None

    def list_needed_libraries(self, steps: Iterable[LoadStep]) -> set[str]:
        """Return the names of the libraries that steps need."""
        return {
            found.library for found in map(self._find_user_function, steps) if found is not None
        }

    def plan_step(self, step: LoadStep) -> LoadStep:
        """Return a step with its planned values. The driver calls it once per statement.

        Raises:
            LoadRefused: If the name is unknown, or a parameter is invalid.
        """
        with self._tracking_user_code(step):
            return replace(
                step,
                planned_values=self.find_phase_definition(step).compute_planned_values(
                    step.parameters
                ),
            )

    def find_phase_definition(self, step: LoadStep) -> PhaseDefinition[Any]:
        """Return the definition of a step. Raise LoadRefused if the name is unknown."""
        function = self._find_user_function(step)
        if function is None:
            found = import_module(_BUILT_IN_PACKAGES[step.kind]).definition(step.name)
        else:
            # Import late: only user-defined functions need the large modules for user code.
            library = import_module("snowmelt.load.library").load_library(
                function.library, self.libraries[function.library]
            )
            found = getattr(library, step.kind)(function.factory, function.name)
        if found is None:
            own = [each.name for each in self.user_functions if each.kind == step.kind]
            names = ", ".join((*own, *import_module(_BUILT_IN_PACKAGES[step.kind]).NAMES))
            raise LoadRefused(
                what=f"{step.kind.capitalize()} {step.name}",
                reason=f"not found. Valid {step.kind}s: {names}",
            )
        definition: PhaseDefinition[Any] = found
        return definition

    def _tracking_user_code(self, step: LoadStep) -> AbstractContextManager[None]:
        return (
            shared_progress_page.running_step(str(step))
            if self.is_user_function(step)
            else nullcontext()
        )

    def _find_user_function(self, step: LoadStep) -> UserLoadFunction | None:
        for function in self.user_functions:
            if function.kind == step.kind and function.name.lower() == step.name.lower():
                return function
        return None
