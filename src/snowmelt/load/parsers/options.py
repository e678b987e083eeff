"""Parameters of a parser as fields of a data class, and the definition that they make."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

from snowmelt.load.definition import Definition, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.load.phases import Parser, RecordParser

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
