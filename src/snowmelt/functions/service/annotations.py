"""SQL types from the annotations of a Python function.

`int` is NUMBER(38,0), `float` FLOAT, `str` VARCHAR, `bool` BOOLEAN, `bytes` BINARY, `date` DATE,
`time` TIME, `datetime` TIMESTAMP_NTZ, `list` ARRAY, `dict` OBJECT, `Any` and `object` VARIANT;
`Annotated[Decimal, "NUMBER(12,2)"]` is what its text says. `X | None` wants to see NULL.
"""

from __future__ import annotations

import datetime as dt
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Union

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.service.context import Context
from snowmelt.functions.signature import Argument, Signature, SqlType, parse_type

_TYPES: dict[Any, str] = {
    int: "NUMBER(38,0)",
    float: "FLOAT",
    str: "VARCHAR",
    bool: "BOOLEAN",
    bytes: "BINARY",
    dt.date: "DATE",
    dt.time: "TIME",
    dt.datetime: "TIMESTAMP_NTZ",
    list: "ARRAY",
    tuple: "ARRAY",
    Sequence: "ARRAY",
    dict: "OBJECT",
    Mapping: "OBJECT",
    Any: "VARIANT",
    object: "VARIANT",
}
_COLUMNS = (list, tuple, Sequence)
_POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def signature_of(
    function: Callable[..., object],
    name: str,
    *,
    columns: bool,
    arguments: Sequence[str] | None = None,
    returns: str | None = None,
) -> tuple[Signature, int | None]:
    """Return a function's signature, and which of its arguments is the context, from 0.

    Args:
        function: Whose annotations are read.
        name: In SQL.
        columns: Annotations are of whole columns: `list[str]` is a column of VARCHAR.
        arguments: SQL types instead of annotations.
        returns: SQL type instead of the annotation of the result.

    Raises:
        DeclarationInvalid: An annotation is missing, or has no SQL type.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationInvalid(
            reason=f"an annotation of {name} cannot be read: {error}"
        ) from None
    context_at: int | None = None
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is Context:
            context_at = len(names)
        elif parameter.kind in _POSITIONAL:
            names.append(parameter.name)
        else:
            raise DeclarationInvalid(
                reason=f"{parameter.name} of {name} is not an ordinary positional argument"
            )
    if arguments is not None and len(arguments) != len(names):
        raise DeclarationInvalid(
            reason=f"{name} has {len(names)} arguments, and {len(arguments)} types are given"
        )
    found = []
    for at, each in enumerate(names):
        if arguments is not None:
            found.append(Argument(each, parse_type(arguments[at])))
            continue
        sql_type, nullable = _type(hints.get(each), f"{each} of {name}", columns=columns)
        found.append(Argument(each, sql_type, nullable))
    if returns is not None:
        result = parse_type(returns)
    else:
        result, _ = _type(hints.get("return"), f"the result of {name}", columns=columns)
    return Signature(name, tuple(found), result), context_at


def _type(annotation: Any, what: str, *, columns: bool) -> tuple[SqlType, bool]:
    if annotation is None:
        raise DeclarationInvalid(
            reason=f"{what} has no annotation; write one, such as `str`, or give its SQL type"
        )
    if columns and typing.get_origin(annotation) is not Annotated:
        annotation = _element(annotation, what)
    said = None
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), None)
        if columns and said is None:
            annotation = _element(annotation, what)
    annotation, nullable = _without_none(annotation)
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), said)
    if said is not None:
        return parse_type(said), nullable
    return parse_type(_name(annotation, what)), nullable


def _element(annotation: Any, what: str) -> Any:
    """Return what a column holds: `str` of `list[str]`."""
    origin = typing.get_origin(annotation) or annotation
    if origin not in _COLUMNS:
        raise DeclarationInvalid(
            reason=f"{what} is a column: annotate it as `list[str]`, or any other column as "
            '`Annotated[numpy.ndarray, "FLOAT"]`'
        )
    inner = typing.get_args(annotation)
    return inner[0] if inner else Any


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in {Union, types.UnionType}:
        # VARIANT may be anything, so a function that takes anything also takes NULL.
        return annotation, annotation in {Any, object}
    members = typing.get_args(annotation)
    rest = [each for each in members if each is not type(None)]
    nullable = len(rest) < len(members)
    return (rest[0] if len(rest) == 1 else Any), nullable or len(rest) > 1


def _name(annotation: Any, what: str) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin is Decimal:
        raise DeclarationInvalid(
            reason=f"{what} is a Decimal of unknown digits: annotate it as "
            '`Annotated[Decimal, "NUMBER(12,2)"]`'
        )
    if typing.is_typeddict(origin):
        return "OBJECT"
    try:
        return _TYPES[origin]
    except (KeyError, TypeError):
        raise DeclarationInvalid(
            reason=f'{what} has no SQL type of its own: annotate it as `Annotated[…, "VARCHAR"]`'
        ) from None
