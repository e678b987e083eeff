"""The number of this deployment, drawn when its catalog was created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog import model

if TYPE_CHECKING:
    from sqlalchemy import Connection


def deployment_id(connection: Connection) -> int:
    """Return the deployment's number; it is part of every client prefix."""
    return int(connection.execute(sa.select(model.deployment.c.deployment_id)).scalar_one())
