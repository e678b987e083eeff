"""What `getParameterType`, `plan` and `prepare` of user code say, and what is made of it."""

from __future__ import annotations

import datetime as dt
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.definition import Definition, Parameter
from snowmelt.load.hosting import progress
from snowmelt.load.hosting.binding import PARAMETER_TYPE, bound
from snowmelt.load.hosting.feed import Limits
from snowmelt.load.hosting.guest import Host, place_of
from snowmelt.load.hosting.vertica.columns import SizedColumnTypes
from snowmelt.load.hosting.vertica.server import PlanContext, ServerInterface
from snowmelt.load.steps import Step, StepKind

Phase = TypeVar("Phase")

PLANNED = "$plan"
"""The parameter by which tasks are handed what `plan` wrote."""

_HOST_PARAMETERS = (
    Parameter("whole_input", bool),
    Parameter("patience", dt.timedelta),
    Parameter("chunk_bytes", int),
)
_KINDS: dict[object, type] = {kind: kind for kind in (str, int, float, bool, dt.timedelta)}
_KINDS |= {kind.__name__: kind for kind in (str, int, float, bool)}
_KINDS |= {"dt.timedelta": dt.timedelta, "datetime.timedelta": dt.timedelta}
_KINDS |= {"timedelta": dt.timedelta}


@dataclass(frozen=True)
class HostedDefinition(Definition[Phase]):
    """A factory of the SDK's kind; a parameter that it does not declare is ignored.

    `planner` calls its `plan` with typed parameters, and returns what that wrote.
    """

    planner: Callable[[Mapping[str, object]], Mapping[str, object]] = dict

    def build(self, given: Mapping[str, object]) -> Phase:
        """Make one, with what `plan` returned among the parameters; without, `plan` is called.

        Raises:
            LoadRefused: A parameter is of another type, or `plan` or `prepare` refuses.
        """
        # Whoever planned was warned then, on the driver.
        return Definition.build(self, self._known(given, warn=PLANNED not in given))

    def plan(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """Return what user code plans.

        Raises:
            LoadRefused: It refuses, or a parameter is of another type.
        """
        typed: Definition[Mapping[str, object]]
        typed = Definition(self.name, dict, self.parameters)
        return {PLANNED: dict(self.planner(typed.build(self._known(given, warn=True))))}

    def _known(self, given: Mapping[str, object], *, warn: bool) -> dict[str, object]:
        kinds = {parameter.name.lower(): parameter.kind for parameter in self.parameters}
        known: dict[str, object] = {}
        for name, value in given.items():
            kind = kinds.get(name.lower())
            if kind is None and warn:
                warnings.warn(
                    f"{self.name} declares no parameter {name}; it is ignored",
                    UserWarning,
                    stacklevel=4,
                )
            elif kind is not None:
                text = kind is str and value is not None
                known[name] = str(value) if text else value
        return known


@dataclass(frozen=True, slots=True)
class Factory:
    """A factory of user code, by its methods. `kind` is filter, parser or source."""

    kind: StepKind
    display: str
    made: object
    surroundings: Any = None

    def definition(self, make: Callable[[Host, PlanContext], Phase], plan: Plan) -> Definition[Any]:
        """Return it as something that is built by name.

        `plan` calls its method `plan`, `make` its `prepare`; both are given what they need.
        """
        declared = self._declared()
        own = {parameter.name.lower() for parameter in declared}
        ours = [parameter for parameter in _HOST_PARAMETERS if parameter.name not in own]

        def planner(values: Mapping[str, object]) -> dict[str, object]:
            host, _ = self.host(values, ours)
            context = PlanContext(surroundings=self.surroundings)
            refused(host, lambda: plan(host, context))
            return context.getWriter().values()

        def build(**values: Any) -> Phase:
            planned = values.pop(PLANNED, None)
            if planned is None:
                planned = planner(values)
            host, _ = self.host(values, ours)
            return make(host, PlanContext(planned, self.surroundings))

        parameters = (*declared, *ours, Parameter(PLANNED, dict))
        return HostedDefinition(f"{self.kind} {self.display}", build, parameters, planner)

    def host(
        self, values: Mapping[str, object], ours: list[Parameter]
    ) -> tuple[Host, dict[str, object]]:
        """Return the host for some parameters, and those that are user code's."""
        names = {parameter.name for parameter in ours}
        given = {name: value for name, value in values.items() if name not in names}
        name = str(Step(self.kind, self.display, given))
        limits = _limits({key: value for key, value in values.items() if key in names})
        server = ServerInterface(given, self.surroundings, name)
        return Host(name, server, limits), given

    def _declared(self) -> list[Parameter]:
        types = SizedColumnTypes()
        if callable(getattr(self.made, "getParameterType", None)):
            server = ServerInterface(None, self.surroundings, self.display)
            declare = bound(self.made, "getParameterType", PARAMETER_TYPE)
            refused(Host(f"{self.kind} {self.display}"), lambda: declare(server, types))
        return [Parameter(name, kind.python) for name, kind in types.pairs()]


Plan = Callable[[Host, PlanContext], object]


def refused(host: Host, call: Callable[[], Any]) -> Any:
    """Return what user code returns that is called before anything is loaded.

    Raises:
        LoadRefused: It raised an error.
    """
    try:
        return call()
    except LoadRefused:
        raise
    except BaseException as error:
        if progress.is_ctrl_c(error):
            raise
        raise refusal_of(host.name, error) from error


def refusal_of(what: str, error: BaseException) -> LoadRefused:
    """Return the error that says what user code raised before anything was loaded, and where."""
    if isinstance(error, PhaseFailed):
        return LoadRefused(what=what, reason=str(error).rstrip("."))
    return LoadRefused(what=what, reason=f"{type(error).__name__}: {error}{place_of(error)}")


def own_definition(
    kind: StepKind, display: str, made: Any, make: Callable[[Host, Callable[[], Any]], Phase]
) -> Definition[Phase]:
    """Return a class or function of ours as something that is built by name.

    A class is called with its parameters; of a function that filters, those behind the first are.
    `make` is given what returns an object of the class, a new one with each call, or the function.
    """
    is_class = inspect.isclass(made)
    skipped = 0 if is_class or kind == "source" else 1
    parameters = _keywords(made, skip=skipped, what=f"{kind} {display}")
    own = {parameter.name for parameter in parameters}
    ours = [each for each in _HOST_PARAMETERS if each.name not in own]
    factory = Factory(kind, display, made)
    whole = not is_class

    def build(**values: Any) -> Phase:
        host, given = factory.host(values, ours)
        if whole and "whole_input" not in values:
            host = replace(host, limits=replace(host.limits, whole_input=True))
        return make(host, lambda: made(**given) if is_class else _part(made, given))

    return Definition(f"{kind} {display}", build, (*parameters, *ours))


def _part(function: Callable[..., Any], given: dict[str, object]) -> Callable[..., Any]:
    return partial(function, **given) if given else function


def _keywords(made: Any, *, skip: int, what: str) -> tuple[Parameter, ...]:
    try:
        given = list(inspect.signature(made).parameters.values())[skip:]
    except (TypeError, ValueError):  # built in, without a signature
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(_keyword(each, what) for each in given if each.kind in kinds)


def _keyword(parameter: inspect.Parameter, what: str) -> Parameter:
    required = parameter.default is parameter.empty
    known = _KINDS.get(_plain(parameter.annotation))
    if known is None and not required:
        known = _KINDS.get(type(parameter.default))
    if known is None:
        if parameter.annotation is parameter.empty:
            known = str
        else:
            raise LoadRefused(
                what=what,
                reason=f"its parameter {parameter.name} is none of str, int, float, bool, "
                "datetime.timedelta",
            )
    return Parameter(parameter.name, known, required)


def _plain(annotation: object) -> object:
    text = annotation if isinstance(annotation, str) else None
    if text is not None:
        return text.replace("| None", "").replace("None |", "").strip()
    arguments = [each for each in getattr(annotation, "__args__", ()) if each is not type(None)]
    return arguments[0] if len(arguments) == 1 else annotation


def _limits(values: Mapping[str, object]) -> Limits:
    limits = Limits(patience_seconds=progress.limits().call_s)
    whole, patience, chunk = (values.get(parameter.name) for parameter in _HOST_PARAMETERS)
    if whole is not None:
        limits = replace(limits, whole_input=bool(whole))
    if patience is not None:
        limits = replace(limits, patience_seconds=cast("dt.timedelta", patience).total_seconds())
    if chunk is not None:
        limits = replace(limits, chunk_bytes=max(1, cast("int", chunk)))
    return limits
