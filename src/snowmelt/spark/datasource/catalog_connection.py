"""Connection of a Spark process to a Snowmelt catalog, from the session's `Snowmelt` or from options.

The data source `snowmelt` plans and commits in processes that Spark starts, which have no
`Snowmelt` object. A connection therefore contains URLs and paths, not open resources. It does not
contain the master key, only the path of the key's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError
from snowmelt.schema.types import to_internal_name

# The name matches `spark.redaction.regex`, so that Spark redacts the value when it shows options.
SECRET_CATALOG = "secret_catalog"  # noqa: S105  a name
_DEFAULT_CORES = 8


@dataclass(frozen=True, slots=True)
class LakeConnection:
    """Catalog, stores and role of a connection. `cores` is the number of concurrent tasks."""

    catalog: str = field(repr=False)
    stage: str
    warehouse: str
    keys: Path | None
    role: str = ACCOUNTADMIN
    cores: int = _DEFAULT_CORES

    @property
    def database(self) -> Database:
        """The catalog. Opened once per process.

        Raises:
            CatalogUnavailable: If the catalog cannot be reached.
        """
        return _open_cached_database(self.catalog)

    @property
    def keyring(self) -> KeyRing:
        """Keys that decrypt chunks.

        Raises:
            ConfigurationError: If no key folder is configured, or other users may read it.
        """
        if self.keys is None:
            raise ConfigurationError(
                setting="keys",
                reason="chunks cannot be opened without the folder of the master key; give it as "
                "the option `keys`, or to `Snowmelt` as a folder",
            )
        return _load_cached_keyring(self.keys)


def resolve_connection(
    options: Mapping[str, str], default: LakeConnection | None
) -> LakeConnection:
    """Return the connection that the options describe.

    Missing options come from `default`. Without `default`, or with the option `data_dir`, they come from
    the environment.

    Raises:
        ConfigurationError: If the option `catalog` contains a password, which plans would show.
    """
    folder = options.get("data_dir")
    if default is None or folder is not None:
        settings = Settings.load(folder)
        default = LakeConnection(
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
        )
    catalog = options.get("catalog")
    if catalog is not None and "://" in catalog and sa.make_url(catalog).password is not None:
        raise ConfigurationError(
            setting="catalog",
            reason=f"plans would show its password; use the option `{SECRET_CATALOG}`, which Spark "
            "keeps out of them, or the environment (SNOWMELT_CATALOG_URL)",
        )
    keys, role = options.get("keys"), options.get("role")
    return replace(
        default,
        catalog=options.get(SECRET_CATALOG) or catalog or default.catalog,
        stage=options.get("stage", default.stage),
        warehouse=options.get("warehouse", default.warehouse),
        keys=default.keys if keys is None else Path(keys),
        role=default.role if role is None else to_internal_name(role),
    )


@lru_cache(maxsize=4)
def _open_cached_database(url: str) -> Database:
    return open_and_upgrade_database(url, create=False)


@lru_cache(maxsize=4)
def _load_cached_keyring(folder: Path) -> KeyRing:
    return KeyRing(load_master_key(folder))
