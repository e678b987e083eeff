"""Buckets and their objects."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, UserError


class BucketNameInvalid(UserError):
    """{bucket!r} is no bucket name: 3 to 63 lower-case letters, digits, dots, hyphens and underscores, with a letter or digit at both ends."""

    code = "bucket_name_invalid"


class ObjectChanged(ConflictError):
    """Object {key} is not the one that the request asks for."""

    code = "object_changed"
    status = 412


class UploadNotFound(UserError):
    """There is no upload {upload}; it may have been completed or aborted."""

    code = "upload_not_found"
    status = 404
