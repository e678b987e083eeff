"""Sources, filters and parsers by the names that a statement calls them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from snowmelt.errors import LoadRefused
from snowmelt.load.udx import worker_progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from snowmelt.load.definition import Definition
    from snowmelt.load.phases import (
        Filter,
        Parser,
        RecordFilter,
        RecordParser,
        RecordSource,
        Source,
    )
    from snowmelt.load.task import Step, StepKind

_BUILT_IN: dict[StepKind, str] = {
    "source": "snowmelt.load.sources",
    "filter": "snowmelt.load.filters",
    "parser": "snowmelt.load.parsers",
}


@dataclass(frozen=True, slots=True)
class UserFunction:
    """What CREATE FILTER, PARSER or SOURCE registered: a factory in a library, by its SQL name."""

    kind: StepKind
    name: str
    factory: str
    library: str


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions that a load may call: those of users first, then those built in.

    A function of a user hides one built in of the same name, so that statements that were
    written for it go on meaning it. `libraries` maps names to files by name. Picklable.
    """

    functions: tuple[UserFunction, ...] = ()
    libraries: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    def source(self, step: Step) -> Source | RecordSource:
        """Make a source.

        Raises:
            LoadRefused: There is none of this name, or its parameters are refused.
        """
        source: Source | RecordSource = self._made(step)
        return source

    def filter(self, step: Step) -> Filter | RecordFilter:
        """Make a filter.

        Raises:
            LoadRefused: There is none of this name, or its parameters are refused.
        """
        made: Filter | RecordFilter = self._made(step)
        return made

    def parser(self, step: Step) -> Parser | RecordParser:
        """Make a parser.

        Raises:
            LoadRefused: There is none of this name, or its parameters are refused.
        """
        parser: Parser | RecordParser = self._made(step)
        return parser

    def is_of_user(self, step: Step) -> bool:
        """Tell whether a step is what a user registered, not built in."""
        return self._registered(step) is not None

    def only(self, steps: Iterable[Step]) -> Functions:
        """Return the same functions with the libraries that some steps need, and no others."""
        used = self.libraries_of(steps)
        return replace(
            self, libraries={name: each for name, each in self.libraries.items() if name in used}
        )

    def libraries_of(self, steps: Iterable[Step]) -> set[str]:
        """Return the names of the libraries that some steps need."""
        return {found.library for found in map(self._registered, steps) if found is not None}

    def planned(self, step: Step) -> Step:
        """Return a step with what its tasks are to know; called on the driver, once a statement.

        Raises:
            LoadRefused: There is none of this name, or its parameters are refused.
        """
        with self._running(step):
            return replace(step, planned=self.definition(step).plan(step.parameters))

    def definition(self, step: Step) -> Definition[Any]:
        """Return what a step's name means.

        Raises:
            LoadRefused: There is nothing of this kind and name.
        """
        found = self._user_function(step) or import_module(_BUILT_IN[step.kind]).definition(
            step.name
        )
        if found is None:
            raise LoadRefused(
                what=f"{step.kind.capitalize()} {step.name}",
                reason=f"there is no {step.kind} of this name; there are {self._names(step.kind)}",
            )
        definition: Definition[Any] = found
        return definition

    def _made(self, step: Step) -> Any:
        with self._running(step):
            return self.definition(step).build({**step.parameters, **step.planned})

    def _running(self, step: Step) -> AbstractContextManager[None]:
        return worker_progress.running(str(step)) if self.is_of_user(step) else nullcontext()

    def _user_function(self, step: Step) -> Definition[Any] | None:
        function = self._registered(step)
        if function is None:
            return None
        # Late: the module that hosts code of users is large, and seldom needed.
        library = import_module("snowmelt.load.library").load_library(
            function.library, self.libraries[function.library]
        )
        definition: Definition[Any] = getattr(library, step.kind)(function.factory, function.name)
        return definition

    def _registered(self, step: Step) -> UserFunction | None:
        for function in self.functions:
            if function.kind == step.kind and function.name.lower() == step.name.lower():
                return function
        return None

    def _names(self, kind: StepKind) -> str:
        own = [function.name for function in self.functions if function.kind == kind]
        return ", ".join((*own, *import_module(_BUILT_IN[kind]).NAMES))
