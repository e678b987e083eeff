"""The S3 endpoint as an ASGI application."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from snowmelt.buckets.bucket import check_key
from snowmelt.buckets.refusals import S3Refusal
from snowmelt.server.counting import ROUTE
from snowmelt.server.s3.answers import refusal_answer
from snowmelt.server.s3.calls import AuthorisedRequest
from snowmelt.server.s3.members import SIGNING, check_members
from snowmelt.server.s3.receiving import checked_body, receive_whole
from snowmelt.server.s3.requests import new_request_id, request_of
from snowmelt.server.s3.routing import KNOWN, OWN, operation_of
from snowmelt.server.s3.staging import confine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from snowmelt.server.s3.calls import Parts
    from snowmelt.server.s3.door import Door, Identity
    from snowmelt.server.s3.requests import Request
    from snowmelt.server.s3.routing import Operation

    # Request, bucket, key, and the content of the body; the user may read the key.
    Select: TypeAlias = Callable[[AuthorisedRequest, str, str, bytes], Awaitable[ASGIApp]]

MOST_SELECT_BYTES = 1024 * 1024


class Endpoint:
    """Answers every request, whatever it is, in S3's way.

    `select` answers SelectObjectContent; it may return any ASGI application as its answer.
    """

    def __init__(
        self, door: Door, parts: Parts, *, domains: Sequence[str], select: Select | None = None
    ) -> None:
        self._select = select
        self._door = door
        self._parts = parts
        self._domains = tuple(domains)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request: Request | None = None
        answered = asked_for_body = False
        request_id = new_request_id()

        async def receive_marked() -> Message:
            nonlocal asked_for_body
            asked_for_body = True
            return await receive()

        async def send_marked(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                message["headers"] += [
                    (b"x-amz-request-id", request_id.encode()),
                    (b"x-amz-id-2", request_id.encode()),
                ]
                if not asked_for_body and request is not None and "expect" in request.headers:
                    # The client keeps back its body: what comes next would be taken for it.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            request = request_of(scope, self._domains)
            request_id = request.request_id
            operation = operation_of(request, None if self._select is None else self._selected)
            scope[ROUTE] = operation.name
            answer = await self._answer(request, operation, receive_marked)
            await answer(scope, receive_marked, send_marked)
        except Exception as error:
            if answered:
                # Cutting the connection is the only way left to say that it failed.
                raise
            resource = request.resource if request is not None else scope["path"]
            refusal = refusal_answer(error, resource=resource, request_id=request_id)
            await refusal(scope, receive, send_marked)

    async def _answer(self, request: Request, operation: Operation, receive: Receive) -> ASGIApp:
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(self._parts.threads, self._admit, request, operation)
        check_members(call, operation.name, stores=operation.stores)
        return await operation.handle(call, receive)

    def _admit(self, request: Request, operation: Operation) -> AuthorisedRequest:
        """Check signature and privileges; reads the catalog."""
        identity = self._door.identify(request)
        request = _with_hoisted(request, identity)
        if request.key:
            check_key(request.key)
        if identity.confined_to is not None:
            request, visit = confine(
                request, operation.handle, identity.confined_to, self._parts.directory
            )
            return AuthorisedRequest(request, identity, self._parts, visit)
        if operation.needs is None:
            return AuthorisedRequest(request, identity, self._parts)
        visit = self._parts.directory.visit(identity.user, request.bucket)
        if operation.needs in {KNOWN, OWN}:
            visit.require_any()
        else:
            visit.require(operation.needs, request.key)
        return AuthorisedRequest(request, identity, self._parts, visit)

    async def _selected(self, call: AuthorisedRequest, receive: Receive) -> ASGIApp:
        if self._select is None:
            raise S3Refusal("NotImplemented")
        body = await receive_whole(receive, most=MOST_SELECT_BYTES)
        content = await call.run(checked_body, call, body)
        return await self._select(call, call.request.bucket, call.key, content)


def _with_hoisted(request: Request, identity: Identity) -> Request:
    """Return the request with the headers that presigning moved into its address.

    Raises:
        S3Refusal: Version 2 signs no such parameter, so anybody could have added it.
    """
    moved = {
        name.lower(): value
        for name, value in request.query.items()
        if name.lower().startswith("x-amz-") and name not in SIGNING
    }
    if not moved:
        return request
    if identity.is_signed and identity.credentials is None:
        name = next(iter(moved))
        raise S3Refusal(
            "NotImplemented", f"{name} in an address signed in version 2 is not offered."
        )
    return dataclasses.replace(request, headers={**moved, **request.headers})
