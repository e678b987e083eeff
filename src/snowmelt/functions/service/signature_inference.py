"""SQL signatures from the annotations of a Python function.

`int` is NUMBER(38,0), `float` FLOAT, `str` VARCHAR, `bool` BOOLEAN, `bytes` BINARY, `date` DATE,
`time` TIME, `datetime` TIMESTAMP_NTZ, `list` ARRAY, `dict` OBJECT, `Any` and `object` VARIANT.
`Annotated[Decimal, "NUMBER(12,2)"]` has the type that its text names. An argument annotated
`X | None` accepts NULL.
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
from snowmelt.functions.service.request_response_types import Context
from snowmelt.functions.signature import (
    FunctionArgument,
    FunctionSignature,
    SqlType,
    parse_sql_type_text,
)

_SQL_TYPES: dict[Any, str] = {
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
_COLUMN_TYPES = (list, tuple, Sequence)
_POSITIONAL_KINDS = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def infer_signature(
    function: Callable[..., object],
    name: str,
    *,
    is_columnar: bool,
    arguments: Sequence[str] | None = None,
    returns: str | None = None,
) -> tuple[FunctionSignature, int | None]:
    """Return a function's signature, and which of its arguments is the context, from 0.

    `is_columnar`: Annotations are of whole columns: `list[str]` is a column of VARCHAR.

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
        elif parameter.kind in _POSITIONAL_KINDS:
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
            found.append(FunctionArgument(each, parse_sql_type_text(arguments[at])))
            continue
        sql_type, nullable = _infer_sql_type(
            hints.get(each), f"{each} of {name}", is_columnar=is_columnar
        )
        found.append(FunctionArgument(each, sql_type, nullable))
    if returns is not None:
        result = parse_sql_type_text(returns)
    else:
        result, _ = _infer_sql_type(
            hints.get("return"), f"the result of {name}", is_columnar=is_columnar
        )
    return FunctionSignature(name, tuple(found), result), context_at


def _infer_sql_type(annotation: Any, subject: str, *, is_columnar: bool) -> tuple[SqlType, bool]:
    if annotation is None:
        raise DeclarationInvalid(
            reason=f"{subject} has no annotation; write one, such as `str`, or give its SQL type"
        )
    if is_columnar and typing.get_origin(annotation) is not Annotated:
        annotation = _infer_element_type(annotation, subject)
    said = None
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), None)
        if is_columnar and said is None:
            annotation = _infer_element_type(annotation, subject)
    annotation, nullable = _strip_optional(annotation)
    if typing.get_origin(annotation) is Annotated:
        annotation, *extras = typing.get_args(annotation)
        said = next((each for each in extras if isinstance(each, str)), said)
    if said is not None:
        return parse_sql_type_text(said), nullable
    return parse_sql_type_text(_find_sql_type_name(annotation, subject)), nullable


def _infer_element_type(annotation: Any, subject: str) -> Any:
    """Return what a column holds: `str` of `list[str]`."""
    origin = typing.get_origin(annotation) or annotation
    if origin not in _COLUMN_TYPES:
        raise DeclarationInvalid(
            reason=f"{subject} is a column: annotate it as `list[str]`, or any other column as "
            '`Annotated[numpy.ndarray, "FLOAT"]`'
        )
    inner = typing.get_args(annotation)
    return inner[0] if inner else Any


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in {Union, types.UnionType}:
        # VARIANT may be anything, so a function that takes anything also takes NULL.
        return annotation, annotation in {Any, object}
    members = typing.get_args(annotation)
    rest = [each for each in members if each is not type(None)]
    nullable = len(rest) < len(members)
    return (rest[0] if len(rest) == 1 else Any), nullable or len(rest) > 1


def _find_sql_type_name(annotation: Any, subject: str) -> str:
    origin = typing.get_origin(annotation) or annotation
    if origin is Decimal:
        raise DeclarationInvalid(
            reason=f"{subject} is a Decimal of unknown digits: annotate it as "
            '`Annotated[Decimal, "NUMBER(12,2)"]`'
        )
    if typing.is_typeddict(origin):
        return "OBJECT"
    try:
        return _SQL_TYPES[origin]
    except (KeyError, TypeError):
        raise DeclarationInvalid(
            reason=f'{subject} has no SQL type of its own: annotate it as `Annotated[…, "VARCHAR"]`'
        ) from None
