"""Buckets and their objects."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, UserError


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
