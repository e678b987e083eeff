"""Which integration is meant where a statement does not say its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.security_integrations import find_security_integration
from snowmelt.errors import NotFound, UserError
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.session import Session


def is_security(session: Session, name: str) -> bool:
    """Tell whether a security integration is meant, as far as the role may know of it.

    Raises:
        UserError: There are two of that name.
    """
    if not session.is_administrator:
        return False
    try:
        find_security_integration(session.connection, name)
    except NotFound:
        return False
    try:
        session.find_integration(name)
    except NotFound:
        return True
    raise UserError(
        f"There are an API integration and a security integration {display_name(name)}; write which "
        "is meant, as in DROP API INTEGRATION."
    )
