"""Definitions of sources, filters and parsers: their parameters and how they are built.

`define_parser` makes a definition from a dataclass whose fields are the parameters.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import Parser, RecordParser

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
                self._raise_parameters_rejected(
                    f"unknown parameter {name}. Valid parameters: {self._format_parameter_names()}"
                )
            elif parameter.name in values:
                self._raise_parameters_rejected(f"parameter {parameter.name} is given twice")
            elif value is not None:
                values[parameter.name] = self._convert_value(parameter, value)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in values:
                self._raise_parameters_rejected(
                    f"missing parameter {parameter.name}, expected "
                    f"{_TYPE_DESCRIPTIONS[parameter.kind]}"
                )
        return self.make(**values)

    def compute_planned_values(self, arguments: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        """Plan a statement, on the driver. Return picklable values for `build_phase` in all tasks.

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
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not kind:
            self._raise_parameters_rejected(
                f"invalid parameter {parameter.name}: expected {_TYPE_DESCRIPTIONS[kind]}, "
                f"got {value!r}"
            )
        return value

    def _format_parameter_names(self) -> str:
        return ", ".join(parameter.name for parameter in self.parameters) or "none"

    def _raise_parameters_rejected(self, reason: str) -> None:
        raise LoadRefused(what=self.name, reason=reason)


_PARAMETER_TYPES: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool)}
_PARAMETER_TYPES["dt.timedelta"] = dt.timedelta


def define_parser(
    name: str, options_class: type[Any], make: Callable[[Any], Parser | RecordParser]
) -> PhaseDefinition[Parser | RecordParser]:
    """Return the definition of a parser whose parameters are the fields of `options_class`.

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

    def built(**values: object) -> Parser | RecordParser:
        return make(options_class(**values))

    return PhaseDefinition(name, built, parameters)
