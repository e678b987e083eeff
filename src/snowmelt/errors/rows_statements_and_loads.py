"""Errors of rows, values, statements, loads of files, and buckets."""

from __future__ import annotations

from typing import ClassVar

from snowmelt.errors.base import ConflictError, RemoteError, UserError


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


# --- Loads of files.


class LoadRefused(UserError):
    """{what}: {reason}."""

    code = "load_refused"


class OutputRefused(UserError):
    """Cannot write {option} to {path}: {reason}."""

    code = "output_refused"


class PhaseFailed(UserError):
    """{reason}."""

    # Raised by a source, filter or parser, which knows its bytes but not whose they are; `offset`
    # counts bytes of its input, `record` records of its portion from 1. The load adds the rest.
    code = "phase_failed"


class UserCodeFailed(UserError):
    """{what}: {reason}."""

    # The process that ran the code of a user ended, or was ended because of a limit.
    code = "user_code_failed"


class LoadFailed(UserError):
    """{where}: {reason}."""

    code = "load_failed"


class BrokersSilent(RemoteError):
    """No broker answers for {what}: {reason}."""

    code = "brokers_silent"


class LoadCancelled(UserError):
    """The load was cancelled: nothing of it was loaded."""

    code = "load_cancelled"


class LoadOvertaken(ConflictError):
    """Load {load} was overtaken: {reason}. Nothing was loaded."""

    code = "load_overtaken"


# --- Buckets and their objects.


class BucketNameInvalid(UserError):
    """Invalid bucket name {bucket!r}: expected 3 to 63 lower-case letters, digits, hyphens, underscores and dots, a letter or digit at both ends and beside each dot, no IP address, and no beginning or end that S3 reserves."""

    code = "bucket_name_invalid"


class ObjectChanged(ConflictError):
    """Object {key} is not the one that the request asks for."""

    code = "object_changed"
    status = 412


class UploadNotFound(UserError):
    """There is no upload {upload}; it may have been completed or aborted."""

    code = "upload_not_found"
    status = 404
