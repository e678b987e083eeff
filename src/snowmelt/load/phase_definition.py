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
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dt.timedelta: "an interval",
}
_BOOLEAN_WORDS = {"true": True, "t": True, "yes": True, "on": True, "1": True}
_BOOLEAN_WORDS |= {"false": False, "f": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class PhaseParameter:
    """One parameter: the keyword it is handed on by, its type, and whether it must be given.

    Without a value the keyword is left out, so that the maker's own default holds.
    """

    name: str
    kind: type
    required: bool = False


@dataclass(frozen=True, slots=True)
class PhaseDefinition(Generic[Phase]):
    """A kind of source, filter or parser. `name` is how messages call it."""

    name: str
    make: Callable[..., Phase]
    parameters: tuple[PhaseParameter, ...] = ()

    def build_phase(self, arguments: Mapping[str, object]) -> Phase:
        """Make one with parameters, whose names are taken in any case.

        Raises:
            LoadRefused: A parameter is unknown, missing, given twice, of another type, or its
                value is refused.
        """
        known = {parameter.name.lower(): parameter for parameter in self.parameters}
        values: dict[str, object] = {}
        for name, value in arguments.items():
            parameter = known.get(name.lower())
            if parameter is None:
                self._raise_parameters_rejected(
                    f"there is no parameter {name}; it takes {self._format_parameter_names()}"
                )
            elif parameter.name in values:
                self._raise_parameters_rejected(f"parameter {parameter.name} is given twice")
            elif value is not None:
                values[parameter.name] = self._convert_value(parameter, value)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in values:
                self._raise_parameters_rejected(
                    f"parameter {parameter.name} is missing, {_TYPE_DESCRIPTIONS[parameter.kind]}"
                )
        return self.make(**values)

    def compute_planned_values(self, arguments: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        """Return what is decided once for a statement, on the driver, and handed to all its tasks.

        It is given to `build_phase` together with the parameters, and can be pickled. Functions of users
        plan; those built in have nothing to decide.

        Raises:
            LoadRefused: The parameters are refused.
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
                f"parameter {parameter.name} is {_TYPE_DESCRIPTIONS[kind]}, not {value!r}"
            )
        return value

    def _format_parameter_names(self) -> str:
        return ", ".join(parameter.name for parameter in self.parameters) or "none"

    def _raise_parameters_rejected(self, reason: str) -> None:
        raise LoadRefused(what=self.name, reason=reason)


# --- Parameters of a parser as fields of a data class, and the definition that they make.

_PARAMETER_TYPES = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "dt.timedelta": dt.timedelta,
}


def define_parser(
    name: str, options_class: type[Any], make: Callable[[Any], Parser | RecordParser]
) -> PhaseDefinition[Parser | RecordParser]:
    """Return the definition of a parser that `make` makes of a data class, its parameters.

    A field's type is named as one of the kinds of parameters, or that kind and None.
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
