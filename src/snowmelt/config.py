"""Settings from defaults, environment variables (`SNOWMELT_…`) and arguments, in this order."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from snowmelt.errors import ConfigurationError

_VARIABLE_PREFIX = "SNOWMELT_"
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off", ""), False),
}
_ALLOWED_VALUES = {
    "select_dialect": ("aws", "ceph", "ceph-2020"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
}
# With 0 of these nothing would ever be done, or something over and over.
_POSITIVE_SETTINGS = (
    *("select_queries", "stage_credentials_s", "group_limit", "lease_s", "cleanup_interval_s"),
    *("migrate_interval_s", "migrate_max_chunks"),
    *("compact_interval_s", "compact_target_bytes", "compact_memory_bytes"),
)
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


_ValueT = TypeVar("_ValueT")


def _setting(default: _ValueT, description: str) -> _ValueT:
    return field(default=default, metadata={"about": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set; empty URLs and folders mean the one inside `data_dir`.

    Every field can be set by an environment variable: `SNOWMELT_` and its name in capitals.
    """

    data_dir: Path = field(
        default=Path("snowmelt-data"),
        metadata={"about": "Folder of catalog, stage, warehouse and keys"},
    )
    host: str = _setting("127.0.0.1", "Address to listen on")
    port: int = _setting(8080, "Port to listen on; 0 takes a free one")
    public_hosts: str = _setting(
        "", "Names by which a proxy on this machine is reached; commas between"
    )
    tls_cert: str = _setting("", "File with the certificate of both ports; they speak HTTPS then")
    tls_key: str = _setting("", "File with the certificate's key")
    s3_port: int = _setting(9000, "Port of the S3 endpoint; 0 leaves it out")
    s3_region: str = _setting(
        "us-east-1", "Region that requests to the S3 endpoint are signed for; empty takes any"
    )
    s3_domains: str = _setting(
        "localhost", "Names that a bucket's may stand before in the Host header; commas between"
    )
    s3_backend: str = _setting(
        "", "Places that buckets stand in front of: URLs or folders, [name=]url; commas between"
    )
    select_dialect: str = _setting("aws", "SQL of a select that names none: aws, ceph or ceph-2020")
    select_queries: int = _setting(64, "Selects that run at a time; more are asked to try again")
    select_threads: int = _setting(0, "Threads that all selects share; 0: one for each processor")
    select_record_bytes: int = _setting(16 * 1024 * 1024, "Longest record of a select, bytes")
    select_group_memory_bytes: int = _setting(
        128 * 1024 * 1024, "Memory of one GROUP BY or DISTINCT"
    )
    select_sort_memory_bytes: int = _setting(128 * 1024 * 1024, "Memory of one ORDER BY, bytes")
    select_document_bytes: int = _setting(64 * 1024 * 1024, "Largest JSON value outside lines")
    select_row_group_bytes: int = _setting(256 * 1024 * 1024, "Largest Parquet row group, bytes")
    catalog_url: str = _setting("", "Catalog database: sqlite:///… or postgresql+psycopg://…")
    stage_url: str = _setting("", "Where clients put blobs: a folder or an s3://, gs://, az:// URL")
    stage_endpoint: str = _setting(
        "", "Address of the S3 endpoint as clients reach it, where it is not port and name of ours"
    )
    stage_credentials_s: float = _setting(
        3600.0, "How long credentials for the stage are good, s; the official client asks hourly"
    )
    stage_role: str = _setting(
        "", "ARN of a role that our clients upload to an S3 stage with, narrowed to their prefix"
    )
    warehouse_url: str = _setting("", "Where native files lie")
    keys_dir: Path = field(
        default=Path(),
        metadata={"about": "Folder of the master key, outside the stage; or the key's file"},
    )
    objects_dir: Path = field(
        default=Path(),
        metadata={"about": "Folder of the S3 endpoint's own objects; one for all services"},
    )
    secrets_dir: Path = field(
        default=Path(),
        metadata={"about": "Folder of the files that secrets of integrations name with file:"},
    )
    verify: str = _setting(
        "full", "How a chunk is checked before it counts: full, footer, or (to measure only) off"
    )
    unverified_users: str = _setting(
        "", "Users whose chunks are checked by their footer alone, with commas between them"
    )
    dev: bool = _setting(False, "Accept requests without a token as ACCOUNTADMIN; loopback only")
    group_pause_ms: int = _setting(2, "Least time between two registration transactions, ms")
    group_limit: int = _setting(512, "Most requests in one registration transaction")
    queue_limit: int = _setting(20_000, "Most registrations waiting; more are asked to try again")
    verify_threads: int = _setting(2, "Threads that hand blobs to the processes that verify them")
    verify_processes: int = _setting(1, "Processes that decode blobs before they are registered")
    max_body_bytes: int = _setting(64 * 1024 * 1024, "Largest request body, bytes")
    rows_timezone: str = _setting(
        "UTC", "Row API: zone of TIMESTAMP_LTZ and TIMESTAMP_TZ values that name none"
    )
    rows_max_body_bytes: int = _setting(
        32 * 1024 * 1024, "Row API: largest request as it is sent, bytes"
    )
    rows_max_bytes: int = _setting(
        256 * 1024 * 1024, "Row API: largest request without its compression, bytes"
    )
    rows_max_file_bytes: int = _setting(
        256 * 1024 * 1024, "Row API: largest file of rows as it is stored, bytes"
    )
    rows_held_bytes: int = _setting(
        1024 * 1024 * 1024, "Row API: memory of all rows on their way, bytes; others wait"
    )
    rows_requests_per_s: int = _setting(
        0, "Row API: most requests of a channel in a second; 0: any number"
    )
    rows_flush_ms: int = _setting(
        0, "Row API: how long the official SDK gathers rows, ms; 0: as long as it likes"
    )
    migrate: bool = _setting(True, "Migrate in the background while serving")
    migrate_interval_s: float = _setting(30.0, "Time between two looks for chunks to migrate, s")
    migrate_min_bytes: int = _setting(16 * 1024 * 1024, "Backlog that is migrated, bytes of chunks")
    migrate_max_chunks: int = _setting(500, "Backlog that is migrated, in chunks")
    migrate_max_age_s: float = _setting(60.0, "Age of the oldest chunk that is migrated, s")
    compact: bool = _setting(True, "Join small native files in the migrator's process")
    compact_interval_s: float = _setting(300.0, "Time between two looks for small files, s")
    compact_target_bytes: int = _setting(128 * 1024 * 1024, "Size of a native file aimed at, bytes")
    compact_min_files: int = _setting(8, "Small files of about a size that are joined")
    compact_memory_bytes: int = _setting(
        256 * 1024 * 1024, "Rows that are held while files are joined, bytes"
    )
    lease_s: float = _setting(60.0, "How long a migrator that died keeps others waiting, s")
    retention_s: float = _setting(
        3600.0, "How long migrated blobs and old snapshots are kept, s; more than 3000"
    )
    channel_idle_s: float = _setting(
        30 * 86_400.0, "After how long without rows a channel expires with its token, s; 0: never"
    )
    history_retention_s: float = _setting(
        30 * 86_400.0, "How long it is kept who opened and dropped which channel, s"
    )
    cleanup_interval_s: float = _setting(60.0, "Time between two clean-ups, s")
    backlog_max_chunks: int = _setting(
        0, "Chunks waiting in a table from which on it asks clients to wait; 0: any number"
    )
    backlog_max_bytes: int = _setting(
        0, "Bytes waiting in a table from which on it asks clients to wait; 0: any number"
    )
    metrics_token_file: str = _setting(
        "", "File with the token that readers of /metrics present; empty: everybody may read"
    )
    drain_s: float = _setting(10.0, "How long a stopping service waits for open requests, s")
    user_code_memory_bytes: int = _setting(
        4 * 1024 * 1024 * 1024, "COPY: memory of the process that runs code of users, bytes"
    )
    user_code_output_bytes: int = _setting(
        1024 * 1024 * 1024,
        "COPY: most that a user's filter emits beyond 1,000 times its input, bytes",
    )
    user_code_call_s: float = _setting(
        600.0, "COPY: longest time that code of users runs without returning, s"
    )
    log_level: str = _setting("info", "debug, info, warning or error")
    log_format: str = _setting("text", "How the log is written: text, or json (an object a line)")

    @classmethod
    def load(cls, data_dir: str | os.PathLike[str] | None = None, **overrides: object) -> Settings:
        """Settle every setting; `overrides` that are None count as not given.

        Raises:
            ConfigurationError: An unknown name, or a value that does not fit.
        """
        return cls.from_environment(os.environ, data_dir=data_dir, **overrides)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **overrides: object) -> Settings:
        """Like `load`, from the mapping given instead of the process's environment.

        Raises:
            ConfigurationError: An unknown name, or a value that does not fit.
        """
        fields = {each.name: each for each in dataclasses.fields(cls)}
        values: dict[str, object] = {}
        for name, each in fields.items():
            text = environment.get(variable_for_setting(name))
            if text is not None:
                values[name] = _parse_value(name, text, each.default)
        for name, value in overrides.items():
            if name not in fields:
                raise ConfigurationError(setting=name, reason="there is no such setting")
            if value is not None:
                values[name] = _parse_value(name, value, fields[name].default)
        return _validate_settings(cls(**_fill_path_defaults(values)))  # type: ignore[arg-type]

    @property
    def public_host_names(self) -> frozenset[str]:
        """The names of `public_hosts`, in lower case."""
        names = (each.strip().rstrip(".").lower() for each in self.public_hosts.split(","))
        return frozenset(name for name in names if name)

    @property
    def listens_on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in _LOOPBACK_HOSTS or self.host.startswith("127.")

    def list_reserved_paths(self) -> tuple[str, ...]:
        """Return the files and folders of the deployment, in which no output may lie."""
        catalog = self.catalog_url.partition("?")[0]
        files = [catalog.removeprefix("sqlite:///")] if catalog.startswith("sqlite:///") else []
        places = [str(self.data_dir), self.stage_url, self.warehouse_url]
        places += [str(self.keys_dir), str(self.objects_dir), str(self.secrets_dir), *files]
        places += [f"{file}{ending}" for file in files for ending in ("-wal", "-shm")]
        return tuple(dict.fromkeys(places))

    def to_environment(self) -> dict[str, str]:
        """Return the variables with which a child process gets the same settings."""
        texts: dict[str, str] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            texts[variable_for_setting(each.name)] = (
                str(int(value)) if isinstance(value, bool) else str(value)
            )
        return texts


# Set for children of a service: their standard input is a pipe that closes with the service.
PARENT_PIPE_VARIABLE = "SNOWMELT_PARENT_PIPE"


def has_parent_pipe() -> bool:
    """Tell whether a service started this process and holds the other end of standard input."""
    return PARENT_PIPE_VARIABLE in os.environ


def copy_environment() -> dict[str, str]:
    """Return a copy of this process's environment, to start a child with."""
    return dict(os.environ)


# Settings of tests and of single parts, which are read where they are used.
_NON_SETTING_VARIABLES = frozenset({PARENT_PIPE_VARIABLE, "SNOWMELT_FAULT"})


def find_unknown_variables() -> list[str]:
    """Return the variables of the environment that look like settings and are none, sorted."""
    known = {variable_for_setting(each.name) for each in dataclasses.fields(Settings)}
    return sorted(
        name
        for name in os.environ
        if name.startswith(_VARIABLE_PREFIX) and name not in known | _NON_SETTING_VARIABLES
    )


def variable_for_setting(setting: str) -> str:
    """Return the environment variable that a setting is given in."""
    return _VARIABLE_PREFIX + setting.upper()


def read_environment_variable(name: str) -> str | None:
    """Return a variable that somebody refers to by its name, None where it is not set."""
    return os.environ.get(name)


_NUMBA_CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def set_numba_cache_dir(folder: Path, *, package: Path = Path(__file__).parent / "kernels") -> None:
    """Let compiled queries be kept in a folder where they cannot lie beside the package.

    To be called before numba is first imported; where `NUMBA_CACHE_DIR` is set, that stands.
    """
    if _NUMBA_CACHE_VARIABLE in os.environ:
        return
    beside = package / "__pycache__"
    try:
        beside.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=beside).close()
    except OSError:
        os.environ[_NUMBA_CACHE_VARIABLE] = str(folder)


def _fill_path_defaults(values: dict[str, object]) -> dict[str, object]:
    """Fill the places that depend on the data folder; all of them absolute."""
    data_dir = Path(str(values.get("data_dir", "snowmelt-data"))).expanduser().absolute()

    def placed(name: str, default: str) -> Path:
        given = values.get(name)
        if given in {None, Path()}:
            return data_dir / default
        return Path(str(given)).expanduser().absolute()

    return values | {
        "data_dir": data_dir,
        "catalog_url": values.get("catalog_url") or f"sqlite:///{data_dir / 'catalog.db'}",
        "stage_url": values.get("stage_url") or str(data_dir / "stage"),
        "warehouse_url": values.get("warehouse_url") or str(data_dir / "warehouse"),
        "keys_dir": placed("keys_dir", "keys"),
        "objects_dir": placed("objects_dir", "objects"),
        "secrets_dir": placed("secrets_dir", "secrets"),
    }


def _validate_settings(settings: Settings) -> Settings:
    if settings.verify not in {"footer", "full", "off"}:
        raise ConfigurationError(setting="verify", reason="it is either full or footer")
    if settings.verify == "off" and not settings.listens_on_loopback:
        raise ConfigurationError(
            setting="verify", reason="off is for measurements, on loopback only"
        )
    for setting, port in (("port", settings.port), ("s3_port", settings.s3_port)):
        if not 0 <= port < 65536:
            raise ConfigurationError(setting=setting, reason="it lies between 0 and 65535")
    for setting, choices in _ALLOWED_VALUES.items():
        if getattr(settings, setting) not in choices:
            reason = f"it is {', '.join(choices[:-1])} or {choices[-1]}"
            raise ConfigurationError(setting=setting, reason=reason)
    for name in Settings.__dataclass_fields__:
        value = getattr(settings, name)
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            raise ConfigurationError(setting=name, reason=f"{value} is not a number")
        if value < 0:
            raise ConfigurationError(setting=name, reason="it cannot be negative")
        if name in _POSITIVE_SETTINGS and not value:
            raise ConfigurationError(setting=name, reason="it must be more than 0")
    return settings


def _parse_value(name: str, value: object, default: object) -> object:
    """Return `value` (often text) in the type of the default."""
    try:
        match default:
            case bool():
                return _BOOLEANS[str(value).strip().lower()]
            case int():
                return int(str(value))
            case float():
                return float(str(value))
            case Path():
                return Path(str(value))
            case _:
                return str(value)
    except (KeyError, ValueError):
        wanted = "yes or no" if isinstance(default, bool) else "a number"
        raise ConfigurationError(setting=name, reason=f"{value!r} is not {wanted}") from None
