"""Blobs and the stage they lie in."""

from __future__ import annotations

from snowmelt.errors.tree import RemoteError, UserError


class BlobInvalid(UserError):
    """Blob {path}: {reason}."""

    code = "blob_invalid"
    response_code = 38


class PathRefused(UserError):
    """Path {path!r} is not taken: {reason}."""

    code = "path_refused"
    response_code = 34


class ObjectMissing(UserError):
    """There is no object {path} in {store}."""

    code = "object_missing"
    status = 404
    response_code = 38


class StageUnavailable(RemoteError):
    """The stage cannot be written: {reason}."""

    code = "stage_unavailable"
    status = 503


class SyncFailed(StageUnavailable):
    """Sync failed: {reason}. What was written since the last sync may be lost; check the disk."""

    code = "sync_failed"


class BlobCorrupt(RemoteError):
    """Blob {path}, chunk at {offset}: {reason}. It is not what was registered; nothing was read from it."""

    code = "blob_corrupt"
    retryable = False


class ServiceUnavailable(RemoteError):
    """The service at {url} does not answer: {reason}."""

    code = "service_unavailable"
    status = 503
