"""What statements about security integrations say, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True)
class AlterSecurityIntegration:
    """ALTER SECURITY INTEGRATION … SET or UNSET: fields of the grammar and their new values."""

    name: str
    changes: Mapping[str, object]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribeSecurityIntegration:
    """DESCRIBE SECURITY INTEGRATION."""

    name: str


@dataclass(frozen=True, slots=True)
class DescribeAnyIntegration:
    """DESCRIBE INTEGRATION without its kind."""

    name: str
