"""Parameters of a parser as fields of a data class, and the definition that they make."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Protocol

from snowmelt.load.definition import Definition, Parameter

if TYPE_CHECKING:
    from snowmelt.load.phases import Parser, RecordParser

_KINDS = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "dt.timedelta": dt.timedelta,
}


class Options(Protocol):
    """A data class whose fields are parameters, with their defaults."""

    def parser(self) -> Parser | RecordParser:
        """Make the parser.

        Raises:
            LoadRefused: A value is refused.
        """


def defined(name: str, options: type[Any]) -> Definition[Any]:
    """Return the definition of a parser whose parameters are the fields of a data class.

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

    def make(**values: object) -> Any:
        return options(**values).parser()

    return Definition(name, make, parameters)
