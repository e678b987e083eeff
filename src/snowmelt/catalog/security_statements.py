"""What statements about security integrations say, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.catalog.naming import Existing
    from snowmelt.catalog.security_integrations import SecurityIntegration


@dataclass(frozen=True, slots=True)
class CreateSecurityIntegration:
    """CREATE SECURITY INTEGRATION."""

    name: str
    integration: SecurityIntegration
    existing: Existing


@dataclass(frozen=True, slots=True)
class DropSecurityIntegration:
    """DROP SECURITY INTEGRATION."""

    name: str
    if_exists: bool
