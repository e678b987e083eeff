"""`GET /healthz`: is everything there that a registration needs?"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from snowmelt.catalog import deployment
from snowmelt.errors import SnowmeltError
from snowmelt.server.counting import ROUTE

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from starlette.requests import Request

    from snowmelt.catalog.database import Database
    from snowmelt.storage.store import Store

HEALTH_PATH = "/healthz"
# Any path: whether the stage answers is the question, not whether the object is there.
_PROBE = "healthz/probe"


def health_route(database: Database, stage: Store, threads: Executor) -> Route:
    """Return the route; 200 when catalog and stage answer, else 503 naming what does not."""

    def look() -> dict[str, str]:
        return {"catalog": _state(lambda: _ping(database)), "stage": _state(lambda: _look(stage))}

    async def health(request: Request) -> JSONResponse:
        request.scope[ROUTE] = HEALTH_PATH
        parts = await asyncio.get_running_loop().run_in_executor(threads, look)
        is_well = all(state == "ok" for state in parts.values())
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ok" if is_well else "failing", **parts}, status)

    return Route(HEALTH_PATH, health, methods=["GET"])


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except (SnowmeltError, OSError) as error:
        return str(error)
    return "ok"


def _ping(database: Database) -> None:
    with database.reading() as connection:
        deployment.deployment_id(connection)


def _look(stage: Store) -> None:
    stage.head(_PROBE)
