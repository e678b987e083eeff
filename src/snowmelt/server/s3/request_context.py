"""Authorized S3 request with its user and bucket, and the components of the service."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from snowmelt.buckets.errors import S3Error
from snowmelt.config import Settings
from snowmelt.server.s3.request import S3Request
from snowmelt.storage.store import OpenObject

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive

    from snowmelt.buckets.bucket import ObjectMetadata
    from snowmelt.buckets.bucket_registry import BucketAccess, BucketRegistry
    from snowmelt.buckets.multipart import MultipartUploads
    from snowmelt.server.s3.authentication import S3Identity

OperationHandler: TypeAlias = "Callable[[AuthorizedS3Request, Receive], Awaitable[ASGIApp]]"
_Result = TypeVar("_Result")
_LISTING_PAGE_KEYS = 1000


@dataclass(frozen=True, slots=True)
class S3Components:
    """Components that the operations use. `hash_threads` is only for hashing."""

    settings: Settings
    bucket_registry: BucketRegistry
    multipart_uploads: MultipartUploads
    threads: Executor
    hash_threads: Executor


@dataclass(frozen=True, slots=True)
class AuthorizedS3Request:
    """A request with a valid signature, whose user has the required privileges."""

    request: S3Request
    identity: S3Identity
    components: S3Components
    optional_bucket_access: BucketAccess | None = None

    @property
    def request_id(self) -> str:
        """The ID of the response."""
        return self.request.request_id

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by lower-case name."""
        return self.request.headers

    @property
    def query(self) -> Mapping[str, str]:
        """Decoded query parameters."""
        return self.request.query

    @property
    def key(self) -> str:
        """The key of the object, or empty for a request to a bucket."""
        return self.request.key

    @property
    def user(self) -> str:
        """Internal name of the user."""
        return self.identity.user

    @property
    def bucket_access(self) -> BucketAccess:
        """The bucket of the request.

        Raises:
            S3Error: If the request has no bucket.
        """
        if self.optional_bucket_access is None:
            raise S3Error("InvalidRequest", "A bucket is needed.")
        return self.optional_bucket_access

    @property
    def select_dialect(self) -> str | None:
        """The bucket's S3 Select dialect, or None for the dialect of the service."""
        return self.bucket_access.record.select_dialect

    def open_object(self, key: str) -> tuple[ObjectMetadata, OpenObject]:
        """Open an object of the bucket for reading. Blocks. The caller must close the object.

        Raises:
            S3Error: If the object does not exist, or the user may not read it.
        """
        self.bucket_access.require_privilege("READ", key)
        return self.bucket_access.bucket.open(key)

    def list_objects(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Yield all objects whose keys begin with `prefix`, in byte order. Blocks.

        Raises:
            S3Error: If the user may not read all objects with the prefix.
        """
        self.bucket_access.require_privilege("READ", prefix)
        after = ""
        while True:
            page = self.bucket_access.bucket.list_page(
                prefix, delimiter="", after=after, limit=_LISTING_PAGE_KEYS
            )
            yield from (each for each in page.entries if not isinstance(each, str))
            if not page.truncated:
                return
            after = page.last_key_or_prefix

    async def run_in_thread(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run blocking work in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.components.threads, work, *arguments)


def blocking_operation(work: Callable[[AuthorizedS3Request], ASGIApp]) -> OperationHandler:
    """Convert a blocking function that needs no body to an operation that runs in a thread."""

    @functools.wraps(work)
    async def handle(call: AuthorizedS3Request, receive: Receive) -> ASGIApp:
        del receive
        return await call.run_in_thread(work, call)

    return handle
