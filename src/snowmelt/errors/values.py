"""Rows, values and statements."""

from __future__ import annotations

from typing import ClassVar

from snowmelt.errors.tree import UserError


class InvalidRow(UserError):
    """The given row cannot be converted to the internal format: {reason}."""

    code = "invalid_row"
    sdk_code: ClassVar[str] = "0004"


class InvalidValue(InvalidRow):
    """The given row cannot be converted to the internal format due to invalid value: {reason}."""

    code = "invalid_value"
    sdk_code: ClassVar[str] = "0030"


class TooComplex(InvalidRow):
    """The given row cannot be converted to the internal format: {reason}."""

    code = "too_complex"
    sdk_code: ClassVar[str] = "0020"


class RowTooLarge(InvalidRow):
    """The given row exceeds the maximum size: {reason}."""

    code = "row_too_large"
    sdk_code: ClassVar[str] = "0031"


class StatementError(UserError):
    """{reason} (line {line}, column {column})."""

    code = "statement_error"


class Unsupported(UserError):
    """{what} is not supported: {instead}."""

    code = "unsupported"
    response_code = 6
