"""Definitions of sources, filters and parsers: parameters, and construction from their values.

`define_phase` makes a definition from a dataclass whose fields are the parameters.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

from snowmelt.errors import LoadRefused, MissingExtra

Phase = TypeVar("Phase")

_TYPE_DESCRIPTIONS: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dt.timedelta: "an interval",
}
_BOOLEAN_WORDS = {"true": True, "t": True, "yes": True, "on": True, "1": True}
_BOOLEAN_WORDS |= {"false": False, "f": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class PhaseParameter:
    """One parameter: its keyword in `make`, its type, and whether it is required.

    Without a value, the keyword is omitted and the default of `make` applies.
    """

    name: str
    kind: type
    required: bool = False


@dataclass(frozen=True, slots=True)
class PhaseDefinition(Generic[Phase]):
    """A source, filter or parser that can be built. `name` appears in messages."""

    name: str
    make: Callable[..., Phase]
    parameters: tuple[PhaseParameter, ...] = ()

    def build_phase(self, arguments: Mapping[str, object]) -> Phase:
        """Build a phase. Parameter names are case-insensitive.

        Raises:
            LoadRefused: If a parameter is unknown, missing, given twice, or invalid.
        """
        known = {parameter.name.lower(): parameter for parameter in self.parameters}
        values: dict[str, object] = {}
        for name, value in arguments.items():
            parameter = known.get(name.lower())
            if parameter is None:
                names = ", ".join(parameter.name for parameter in self.parameters) or "none"
                raise self._make_error(f"unknown parameter {name}. Valid parameters: {names}")
            if parameter.name in values:
                raise self._make_error(f"parameter {parameter.name} is given twice")
            if value is not None:
                values[parameter.name] = self._convert_value(parameter, value)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in values:
                expected = _TYPE_DESCRIPTIONS[parameter.kind]
                raise self._make_error(f"missing parameter {parameter.name}, expected {expected}")
        return self.make(**values)

    def compute_planned_values(self, arguments: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        """Plan the phase, on the driver. Return picklable values for `build_phase` in each task.

        Built-in phases plan nothing.

        Raises:
            LoadRefused: If a parameter is invalid.
        """
        return {}

    def _convert_value(self, parameter: PhaseParameter, value: object) -> object:
        kind = parameter.kind
        if kind is bool and not isinstance(value, bool):
            word = _BOOLEAN_WORDS.get(str(value).lower())
            value = value if word is None else word
        if kind is float and isinstance(value, int | Decimal) and not isinstance(value, bool):
            number = _to_finite_float(value)
            value = value if number is None else number
        if type(value) is not kind:
            got = str(value) if isinstance(value, Decimal) else repr(value)
            raise self._make_error(
                f"invalid parameter {parameter.name}: expected {_TYPE_DESCRIPTIONS[kind]}, "
                f"got {got}"
            )
        return value

    def _make_error(self, reason: str) -> LoadRefused:
        return LoadRefused(what=self.name, reason=reason)


def _to_finite_float(value: int | Decimal) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


_PARAMETER_TYPES: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool)}
_PARAMETER_TYPES["dt.timedelta"] = dt.timedelta


def define_phase(
    name: str, options_class: type[Any], make: Callable[[Any], Phase]
) -> PhaseDefinition[Phase]:
    """Return the definition of a phase whose parameters are the fields of `options_class`.

    The annotation of a field is a key of `_PARAMETER_TYPES`, optionally followed by `| None`.
    """
    parameters = tuple(
        PhaseParameter(
            field.name,
            _PARAMETER_TYPES[str(field.type).removesuffix(" | None")],
            required=field.default is dataclasses.MISSING,
        )
        for field in dataclasses.fields(options_class)
    )
    return PhaseDefinition(name, lambda **values: make(options_class(**values)), parameters)


def import_definition(
    kind: str,
    name: str,
    locations: Mapping[str, tuple[str, str]],
    aliases: Mapping[str, str],
    extra: str = "load",
) -> PhaseDefinition[Any] | None:
    """Import the definition of a built-in phase; return None if the name is unknown.

    Args:
        kind: "Source" or "Filter", for messages.
        name: Case-insensitive name.
        locations: Module and variable of each definition.
        aliases: Further names, in lower case.
        extra: The extra of Snowmelt that installs the optional package.

    Raises:
        MissingExtra: If an optional package is not installed.
    """
    lower = name.lower()
    lower = aliases.get(lower, lower)
    location = next((each for known, each in locations.items() if known.lower() == lower), None)
    if location is None:
        return None
    try:
        module = importlib.import_module(location[0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("snowmelt"):
            raise
        raise MissingExtra(what=f"{kind} {name}", package=error.name, extra=extra) from None
    definition: PhaseDefinition[Any] = getattr(module, location[1])
    return definition
