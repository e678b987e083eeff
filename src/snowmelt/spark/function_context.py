"""What CONTEXT_HEADERS say: who calls, from where; the same for all batches of a query."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: the role, the database and schema of short names, and the statement, if there is one."""

    role: str
    user: str
    session: str
    within: tuple[str, ...] = ()
    statement: str = ""


def context_of(names: Iterable[str], asker: Asker) -> dict[str, str]:
    """Return the values of context headers, empty where there is no such thing here.

    There is no region, warehouse, address or transaction. Instants are not known before Spark
    runs the query, see `function_workers.INSTANTS`.
    """
    values = _values(asker)
    return {name: values.get(name, "") for name in names}


def _values(asker: Asker) -> dict[str, str]:
    database, schema = asker.within or ("", "")
    here = [f"{display_name(database)}.{display_name(schema)}"] if asker.within else []
    return {
        "CURRENT_ACCOUNT": "SNOWMELT",
        "CURRENT_ACCOUNT_NAME": "SNOWMELT",
        "CURRENT_CLIENT": f"snowmelt {version('snowmelt')}",
        "CURRENT_DATABASE": database,
        "CURRENT_ROLE": asker.role,
        "CURRENT_SCHEMA": schema,
        "CURRENT_SCHEMAS": msgspec.json.encode(here).decode(),
        "CURRENT_SESSION": asker.session,
        "CURRENT_STATEMENT": asker.statement,
        "CURRENT_USER": asker.user,
        "CURRENT_VERSION": version("snowmelt"),
    }
