"""Sources, filters and parsers by name: which parameters each takes, and how it is made."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.load.phases import Parser, RecordParser

Phase = TypeVar("Phase")

_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dt.timedelta: "an interval",
}
_WORDS = {"true": True, "t": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "f": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: the keyword it is handed on by, its type, and whether it must be given.

    Without a value the keyword is left out, so that the maker's own default holds.
    """

    name: str
    kind: type
    required: bool = False


@dataclass(frozen=True, slots=True)
class Definition(Generic[Phase]):
    """A kind of source, filter or parser. `name` is how messages call it."""

    name: str
    make: Callable[..., Phase]
    parameters: tuple[Parameter, ...] = ()

    def build(self, given: Mapping[str, object]) -> Phase:
        """Make one with parameters, whose names are taken in any case.

        Raises:
            LoadRefused: A parameter is unknown, missing, given twice, of another type, or its
                value is refused.
        """
        known = {parameter.name.lower(): parameter for parameter in self.parameters}
        values: dict[str, object] = {}
        for name, value in given.items():
            parameter = known.get(name.lower())
            if parameter is None:
                self._refuse(f"there is no parameter {name}; it takes {self._listed()}")
            elif parameter.name in values:
                self._refuse(f"parameter {parameter.name} is given twice")
            elif value is not None:
                values[parameter.name] = self._typed(parameter, value)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in values:
                self._refuse(f"parameter {parameter.name} is missing, {_NAMES[parameter.kind]}")
        return self.make(**values)

    def plan(self, given: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        """Return what is decided once for a statement, on the driver, and handed to all its tasks.

        It is given to `build` together with the parameters, and can be pickled. Functions of users
        plan; those built in have nothing to decide.

        Raises:
            LoadRefused: The parameters are refused.
        """
        return {}

    def _typed(self, parameter: Parameter, value: object) -> object:
        kind = parameter.kind
        if kind is bool and not isinstance(value, bool):
            word = _WORDS.get(str(value).lower())
            value = value if word is None else word
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is not kind:
            self._refuse(f"parameter {parameter.name} is {_NAMES[kind]}, not {value!r}")
        return value

    def _listed(self) -> str:
        return ", ".join(parameter.name for parameter in self.parameters) or "none"

    def _refuse(self, reason: str) -> None:
        raise LoadRefused(what=self.name, reason=reason)


# --- Parameters of a parser as fields of a data class, and the definition that they make.

_KINDS = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "dt.timedelta": dt.timedelta,
}


def defined(
    name: str, options: type[Any], make: Callable[[Any], Parser | RecordParser]
) -> Definition[Parser | RecordParser]:
    """Return the definition of a parser that `make` makes of a data class, its parameters.

    A field's type is named as one of the kinds of parameters, or that kind and None.
    """
    parameters = tuple(
        Parameter(
            field.name,
            _KINDS[str(field.type).removesuffix(" | None")],
            required=field.default is dataclasses.MISSING,
        )
        for field in dataclasses.fields(options)
    )

    def built(**values: object) -> Parser | RecordParser:
        return make(options(**values))

    return Definition(name, built, parameters)
