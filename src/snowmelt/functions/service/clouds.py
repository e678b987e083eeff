"""A service as a function of AWS, Azure or Google."""

from __future__ import annotations

import asyncio
import json
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from snowmelt.errors import SnowmeltError
from snowmelt.functions.refusals import BatchTooLarge
from snowmelt.functions.service.events import MAX_REPLY_BYTES, request_of, result_of
from snowmelt.functions.service.messages import Request, Response
from snowmelt.functions.service.problems import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


_Result = TypeVar("_Result")
Answering: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"


class _Loop:
    """An event loop in a thread of its own, made when it is first used.

    Clouds fork and freeze processes between import and the first call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to its end, from any thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="functions-loop", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def lambda_handler(answer: Answering) -> Callable[[dict[str, Any], object], dict[str, Any]]:
    """Return a handler for AWS Lambda; `answer` is a service's."""
    loop = _Loop()

    def handler(event: dict[str, Any], context: object = None) -> dict[str, Any]:  # noqa: ARG001
        try:
            response = loop.run(answer(request_of(event)))
        except SnowmeltError as error:
            response = _problem(error)
        result = result_of(response, event)
        if len(json.dumps(result)) > MAX_REPLY_BYTES:
            refused = _problem(BatchTooLarge(what="reply to Lambda", limit=MAX_REPLY_BYTES))
            return result_of(refused, event)
        return result

    return handler


def azure_function(answer: Answering) -> Callable[[Any], Any]:
    """Return `main(req)` for Azure Functions; `answer` is a service's."""

    async def main(req: Any) -> Any:
        headers = {name.lower(): value for name, value in req.headers.items()}
        address = urlsplit(req.url)
        response = await answer(
            Request(req.method.upper(), address.path, headers, req.get_body(), address.query)
        )
        # Only there on Azure, and in a project made for it.
        azure = import_module("azure.functions")
        return azure.HttpResponse(
            response.body, status_code=response.status, headers=response.headers
        )

    return main


def cloud_function(answer: Answering) -> Callable[[Any], tuple[bytes, int, dict[str, str]]]:
    """Return an HTTP function for Google Cloud; `answer` is a service's."""
    loop = _Loop()

    def main(request: Any) -> tuple[bytes, int, dict[str, str]]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = request.query_string.decode("latin-1")
        response = loop.run(
            answer(Request(request.method, request.path, headers, request.get_data(), query))
        )
        return response.body, response.status, response.headers

    return main


def _problem(error: SnowmeltError) -> Response:
    answer = problem(error)
    return Response(answer.status, answer.body, {"content-type": "application/json"})
