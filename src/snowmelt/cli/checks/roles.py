"""Checks the role that clients upload with: that it can be had, and that it is narrowed."""

from __future__ import annotations

import ssl
import uuid
from typing import TYPE_CHECKING

import msgspec

from snowmelt.cli.checks.finding import Check, fine, wrong
from snowmelt.errors import ConfigurationError, SnowmeltError, StageUnavailable

if TYPE_CHECKING:
    from snowmelt.clock import Clock
    from snowmelt.config import Settings
    from snowmelt.ingest.handing import Handout

_WHAT = "stage-role"
_PREFIX = "doctor"
_PATIENCE_S = 5.0
_PROBE = b"written by snowmelt doctor"


def check_stage_role(settings: Settings, clock: Clock) -> Check:
    """Upload with a client's credentials, within its prefix and beside it; deletes what it wrote."""
    from snowmelt.ingest.handing import Asker, FolderHanding
    from snowmelt.server.stage_roles import role_handing
    from snowmelt.storage.opening import open_store

    role, name = settings.stage_role, uuid.uuid4().hex
    try:
        handing = role_handing(settings, FolderHanding(settings.data_dir))
        handout = handing.hand_out(Asker(_PREFIX, renews_by_prefix=True), _PREFIX)
        stage = open_store(settings.stage_url)
        refused = _refusal(handout, name, clock)
        if refused is not None:
            return wrong(_WHAT, f"with {role} nothing can be uploaded: {refused}")
        stage.delete(f"{_PREFIX}/{name}")
        if _refusal(_beside(handout), name, clock) is None:
            stage.delete(f"{_PREFIX}-beside/{name}")
            return wrong(
                _WHAT,
                f"{role} is not narrowed: this server ignores session policies, so that a client could "
                "write over the blobs of all others; unset SNOWMELT_STAGE_ROLE",
            )
    except ConfigurationError as error:
        return wrong(_WHAT, str(error))
    except SnowmeltError as error:
        return wrong(_WHAT, f"{role} cannot be had: {error.__cause__ or error}")
    return fine(_WHAT, f"{role}, narrowed to a client's prefix")


def _beside(handout: Handout) -> Handout:
    location = handout.location
    other = location.location.rstrip("/") + "-beside/"
    return handout._replace(location=msgspec.structs.replace(location, location=other))


def _refusal(handout: Handout, name: str, clock: Clock) -> StageUnavailable | None:
    from snowmelt.client.bucket import BucketStage, Grant

    grant = Grant(handout.location, handout.expires_in_s)
    stage = BucketStage(
        grant,
        lambda: grant,
        clock,
        timeout_s=_PATIENCE_S,
        trusted=ssl.create_default_context,
    )
    try:
        stage.put(name, _PROBE)
    except StageUnavailable as error:
        return error
    finally:
        stage.close()
    return None
