"""Settings from defaults, the configuration file, the environment and arguments.

Sources override each other in this order: later ones take precedence.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import TypeVar

from snowmelt.config_file import (
    CONFIG_FILE_NAME,
    CONFIG_FILE_VARIABLE,
    PROFILE_KEYS,
    PROFILE_VARIABLE,
    ConfigFile,
    check_keys,
    load_config_file,
)
from snowmelt.errors import ConfigurationError, InvalidConfigFile

_VARIABLE_PREFIX = "SNOWMELT_"
_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off", ""), False),
}
_ALLOWED_VALUES = {
    "select_dialect": ("aws", "ceph", "ceph-2020"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "console": ("auto", "off", "read", "write"),
}
# These settings must be positive: zero would stop the work that they control, or repeat it without
# pause.
_POSITIVE_SETTINGS = (
    *("select_queries", "stage_credentials_s", "group_limit", "lease_s", "cleanup_interval_s"),
    *("migrate_interval_s", "migrate_max_chunks", "file_batch_files", "file_batch_bytes"),
    *("compact_interval_s", "compact_target_bytes", "compact_memory_bytes"),
)
_SIMILARITY_CUTOFF = 0.85
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


_ValueT = TypeVar("_ValueT")


def _setting(default: _ValueT, description: str) -> _ValueT:
    return field(default=default, metadata={"about": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of an installation.

    An empty URL or folder means the default location inside `data_dir`. Each setting can be given
    in the table `[settings]` of `snowmelt.toml`, and in the environment as `SNOWMELT_` and its
    name in capitals.
    """

    data_dir: Path = field(
        default=Path("snowmelt-data"),
        metadata={"about": "Folder of the catalog, stage, warehouse and keys"},
    )
    host: str = _setting("127.0.0.1", "Address to listen on")
    port: int = _setting(8080, "Port of the service; 0: any free port")
    public_hosts: str = _setting(
        "", "Host names of a proxy in front of a service on loopback, separated by commas"
    )
    tls_cert: str = _setting("", "Certificate file of both ports; with it they serve HTTPS")
    tls_key: str = _setting("", "Key file of the certificate")
    s3_port: int = _setting(9000, "Port of the S3 endpoint; 0: no S3 endpoint")
    s3_region: str = _setting("us-east-1", "Region in signatures of S3 requests; empty: any region")
    s3_domains: str = _setting(
        "localhost", "Domains of virtual-hosted bucket addresses, separated by commas"
    )
    s3_backend: str = _setting(
        "", "Locations served as buckets, as [NAME=]URL or folder, separated by commas"
    )
    select_dialect: str = _setting(
        "aws", "Dialect of a SELECT that names none: aws, ceph or ceph-2020"
    )
    select_queries: int = _setting(64, "Concurrent SELECTs; further ones are rejected with Busy")
    select_threads: int = _setting(0, "Threads shared by all SELECTs; 0: one per processor")
    select_record_bytes: int = _setting(16 * 1024 * 1024, "Largest record of a SELECT, bytes")
    select_group_memory_bytes: int = _setting(
        128 * 1024 * 1024, "Memory of one GROUP BY or DISTINCT, bytes"
    )
    select_sort_memory_bytes: int = _setting(128 * 1024 * 1024, "Memory of one ORDER BY, bytes")
    select_document_bytes: int = _setting(
        64 * 1024 * 1024, "Largest JSON document outside JSON lines, bytes"
    )
    select_row_group_bytes: int = _setting(
        256 * 1024 * 1024, "Largest Parquet row group of a SELECT, bytes"
    )
    catalog_url: str = _setting("", "Catalog database: sqlite:///PATH or postgresql://HOST/NAME")
    stage_url: str = _setting(
        "", "Location of uploaded blobs: a folder, or an s3://, gs:// or az:// URL"
    )
    stage_endpoint: str = _setting(
        "", "Address of the S3 endpoint for clients; empty: host of the request and s3_port"
    )
    stage_credentials_s: float = _setting(
        3600.0, "Lifetime of upload credentials, s; official clients renew them hourly"
    )
    stage_role: str = _setting(
        "",
        "ARN of the AWS role for direct uploads to an S3 stage; empty: upload through the S3 endpoint",
    )
    warehouse_url: str = _setting(
        "", "Location of native files: a folder, or an s3://, gs:// or az:// URL"
    )
    keys_dir: Path = field(
        default=Path(),
        metadata={"about": "Folder of the master key, outside the stage; or the file of the key"},
    )
    objects_dir: Path = field(
        default=Path(),
        metadata={
            "about": "Folder of objects in buckets of the S3 endpoint, the same for all services"
        },
    )
    secrets_dir: Path = field(
        default=Path(),
        metadata={"about": "Folder of the files that secrets of integrations name with file:"},
    )
    verify: str = _setting(
        "full", "Verification of a chunk before it commits: full, footer, or off for measurements"
    )
    unverified_users: str = _setting(
        "", "Users whose chunks are verified by their footer only, separated by commas"
    )
    dev: bool = _setting(False, "Accept requests without a token as ACCOUNTADMIN; on loopback only")
    group_pause_ms: int = _setting(2, "Minimum time between two registration transactions, ms")
    group_limit: int = _setting(512, "Maximum number of requests in one registration transaction")
    queue_limit: int = _setting(
        20_000, "Maximum number of waiting registrations; clients retry beyond it"
    )
    verify_threads: int = _setting(2, "Threads that pass blobs to the verifying processes")
    verify_processes: int = _setting(1, "Processes that decode blobs before they are registered")
    max_body_bytes: int = _setting(64 * 1024 * 1024, "Largest request body, bytes")
    rows_timezone: str = _setting(
        "UTC", "Row API: time zone of TIMESTAMP_LTZ and TIMESTAMP_TZ values without one"
    )
    rows_max_body_bytes: int = _setting(32 * 1024 * 1024, "Row API: largest request as sent, bytes")
    rows_max_bytes: int = _setting(
        256 * 1024 * 1024, "Row API: largest request after decompression, bytes"
    )
    rows_max_file_bytes: int = _setting(
        256 * 1024 * 1024, "Row API: largest file of rows as stored, bytes"
    )
    rows_held_bytes: int = _setting(
        1024 * 1024 * 1024,
        "Row API: memory of all uncommitted rows, bytes; further requests get status 503",
    )
    rows_requests_per_s: int = _setting(
        0, "Row API: maximum requests per channel and second; 0: no limit"
    )
    rows_flush_ms: int = _setting(
        0, "Row API: time for which the official SDK collects rows, ms; 0: the SDK decides"
    )
    migrate: bool = _setting(True, "Migrate chunks to native files in the background")
    migrate_interval_s: float = _setting(30.0, "Time between two checks for chunks to migrate, s")
    migrate_min_bytes: int = _setting(
        16 * 1024 * 1024, "Backlog of a table that starts a migration, bytes"
    )
    migrate_max_chunks: int = _setting(500, "Backlog of a table that starts a migration, chunks")
    migrate_max_age_s: float = _setting(60.0, "Age of the oldest chunk that starts a migration, s")
    compact: bool = _setting(True, "Compact small native files in the background")
    compact_interval_s: float = _setting(300.0, "Time between two checks for small files, s")
    compact_target_bytes: int = _setting(128 * 1024 * 1024, "Target size of a native file, bytes")
    compact_min_files: int = _setting(
        8, "Number of small files of similar size that starts a compaction"
    )
    compact_memory_bytes: int = _setting(
        256 * 1024 * 1024, "Memory for rows during a compaction, bytes"
    )
    lease_s: float = _setting(
        60.0,
        "Lifetime of a migrator's lease, s; another migrator waits this long for a crashed one",
    )
    retention_s: float = _setting(
        3600.0, "Retention of migrated blobs and old snapshots, s; more than 3000"
    )
    channel_idle_s: float = _setting(
        30 * 86_400.0, "Idle time after which a channel and its offset token expire, s; 0: never"
    )
    history_retention_s: float = _setting(30 * 86_400.0, "Retention of the channel history, s")
    cleanup_interval_s: float = _setting(60.0, "Time between two clean-ups, s")
    backlog_max_chunks: int = _setting(
        0, "Backlog of a table beyond which its clients must wait, chunks; 0: no limit"
    )
    backlog_max_bytes: int = _setting(
        0, "Backlog of a table beyond which its clients must wait, bytes; 0: no limit"
    )
    load_files: bool = _setting(True, "Load the files of pipes with AUTO_INGEST")
    file_batch_age_s: float = _setting(
        2.0, "Age of the oldest waiting file that starts a load of a pipe, s"
    )
    file_batch_files: int = _setting(1000, "Waiting files that start a load of a pipe")
    file_batch_bytes: int = _setting(
        256 * 1024 * 1024, "Waiting bytes that start a load of a pipe, bytes"
    )
    query_processes: int = _setting(
        2, "Concurrent queries of the statement API, one per user; 0: no queries"
    )
    query_timeout_s: float = _setting(30.0, "Longest query of the statement API, s")
    query_memory_bytes: int = _setting(
        256 * 1024 * 1024, "Memory of one query of the statement API, bytes"
    )
    query_rows: int = _setting(100_000, "Largest result of the statement API, rows")
    console: str = _setting(
        "auto",
        "Console under /console: auto (read, if on loopback or with TLS), off, read or write",
    )
    console_check_interval_s: float = _setting(
        3600.0, "Time between two automatic checks of the console, s; 0: only on request"
    )
    metrics_token_file: str = _setting(
        "", "File with the bearer token of /metrics; empty: no token needed"
    )
    drain_s: float = _setting(10.0, "Time that a stopping service waits for open requests, s")
    user_code_memory_bytes: int = _setting(
        4 * 1024 * 1024 * 1024, "COPY: memory of the process that runs user code, bytes"
    )
    user_code_output_bytes: int = _setting(
        1024 * 1024 * 1024,
        "COPY: output of a user's filter in addition to 1,000 times its input, bytes",
    )
    user_code_call_s: float = _setting(600.0, "COPY: longest call of user code, s")
    log_level: str = _setting("info", "Log level: debug, info, warning or error")
    log_format: str = _setting("text", "Log format: text, or json (one object per line)")

    @classmethod
    def load(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        config_file: str | os.PathLike[str] | None = None,
        **overrides: object,
    ) -> Settings:
        """Return the settings of this process.

        Args:
            data_dir: Overrides the setting `data_dir`.
            config_file: Configuration file. None: the one that `find_config_file` returns.
            overrides: Settings by name. A value of None means not given.

        Raises:
            ConfigurationError: If a name is unknown or a value is invalid.
            InvalidConfigFile: If the configuration file is invalid.
        """
        file = load_config_file(config_file)
        return cls.from_environment(os.environ, file=file, data_dir=data_dir, **overrides)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, file: ConfigFile | None = None, **overrides: object
    ) -> Settings:
        """Return the settings from these variables and this configuration file only.

        Raises:
            ConfigurationError: If a name is unknown or a value is invalid.
            InvalidConfigFile: If the configuration file is invalid.
        """
        fields = {each.name: each for each in dataclasses.fields(cls)}
        values = {} if file is None else _read_file_values(file, fields)
        for name, each in fields.items():
            text = environment.get(variable_for_setting(name))
            if text is not None:
                values[name] = _parse_value(name, text, each.default)
        for name, value in overrides.items():
            if name not in fields:
                raise ConfigurationError(setting=name, reason="unknown setting")
            if value is not None:
                values[name] = _parse_value(name, value, fields[name].default)
        return _validate_settings(cls(**_fill_path_defaults(values)))  # type: ignore[arg-type]

    @property
    def public_host_names(self) -> frozenset[str]:
        """The host names in `public_hosts`, in lower case."""
        names = (each.strip().rstrip(".").lower() for each in self.public_hosts.split(","))
        return frozenset(name for name in names if name)

    @property
    def listens_on_loopback(self) -> bool:
        """True if only this machine can reach the service."""
        return self.host in _LOOPBACK_HOSTS or self.host.startswith("127.")

    def list_reserved_paths(self) -> tuple[str, ...]:
        """Return the files and folders of the installation, to which commands must not write output."""
        catalog = self.catalog_url.partition("?")[0]
        files = [catalog.removeprefix("sqlite:///")] if catalog.startswith("sqlite:///") else []
        places = [str(self.data_dir), self.stage_url, self.warehouse_url]
        places += [str(self.keys_dir), str(self.objects_dir), str(self.secrets_dir), *files]
        places += [f"{file}{ending}" for file in files for ending in ("-wal", "-shm")]
        return tuple(dict.fromkeys(places))

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables that give a child process the same settings."""
        # An empty path, because the variables already include the values of the configuration file.
        texts = {CONFIG_FILE_VARIABLE: ""}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            texts[variable_for_setting(each.name)] = (
                str(int(value)) if isinstance(value, bool) else str(value)
            )
        return texts


# Set for child processes of a service. Their standard input is a pipe that closes when the service
# ends.
PARENT_PIPE_VARIABLE = "SNOWMELT_PARENT_PIPE"


def has_parent_pipe() -> bool:
    """Return True if a service started this process and holds the other end of its standard input."""
    return PARENT_PIPE_VARIABLE in os.environ


def copy_environment() -> dict[str, str]:
    """Return a copy of the environment of this process, for a child process."""
    return dict(os.environ)


# Variables with the prefix of settings that are not settings. Other modules read them.
_NON_SETTING_VARIABLES = frozenset(
    {PARENT_PIPE_VARIABLE, CONFIG_FILE_VARIABLE, PROFILE_VARIABLE, "SNOWMELT_FAULT"}
)


def find_unknown_variables() -> list[str]:
    """Return the sorted variables that have the prefix of settings but are unknown."""
    known = {variable_for_setting(each.name) for each in dataclasses.fields(Settings)}
    return sorted(
        name
        for name in os.environ
        if name.startswith(_VARIABLE_PREFIX) and name not in known | _NON_SETTING_VARIABLES
    )


def describe_unknown_variables() -> Iterator[str]:
    """Yield a warning for each unknown variable that has the prefix of settings."""
    known = [variable_for_setting(each.name) for each in dataclasses.fields(Settings)]
    for name in find_unknown_variables():
        # All names share a prefix, so require a close match.
        close = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILARITY_CUTOFF)
        hint = f" Did you mean {close[0]}?" if close else ""
        yield f"Unknown setting {name} in the environment, ignored.{hint}"


def variable_for_setting(setting: str) -> str:
    """Return the environment variable of a setting."""
    return _VARIABLE_PREFIX + setting.upper()


def read_environment_variable(name: str) -> str | None:
    """Return an environment variable, or None if it is not set."""
    return os.environ.get(name)


_NUMBA_CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def set_numba_cache_dir(folder: Path, *, package: Path = Path(__file__).parent / "kernels") -> None:
    """Store compiled kernels in `folder` if the package's folder is read-only.

    Must be called before numba is imported. Does nothing if `NUMBA_CACHE_DIR` is set.
    """
    if _NUMBA_CACHE_VARIABLE in os.environ:
        return
    beside = package / "__pycache__"
    try:
        beside.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=beside).close()
    except OSError:
        os.environ[_NUMBA_CACHE_VARIABLE] = str(folder)


# Settings with a path or a URL. In the configuration file, relative paths start at its folder.
_PATH_SETTINGS = (
    *("data_dir", "keys_dir", "objects_dir", "secrets_dir", "stage_url", "warehouse_url"),
    *("tls_cert", "tls_key", "metrics_token_file"),
)
_TOML_TYPES: dict[type, tuple[type | UnionType, str]] = {
    bool: (bool, "true or false"),
    int: (int, "an integer"),
    float: (int | float, "a number"),
}


def get_toml_type(default: object) -> tuple[type | UnionType, str]:
    """Return the type of a setting in the configuration file, and the type's name for messages."""
    return _TOML_TYPES.get(type(default), (str, "a string"))


_JSON_TYPES = {bool: "boolean", int: "integer", float: "number"}


def make_config_file_schema() -> dict[str, object]:
    """Return the JSON schema of `snowmelt.toml`."""
    settings = {
        each.name: {
            "type": _JSON_TYPES.get(type(each.default), "string"),
            "description": each.metadata["about"],
        }
        | ({"enum": list(_ALLOWED_VALUES[each.name])} if each.name in _ALLOWED_VALUES else {})
        for each in dataclasses.fields(Settings)
    }
    profile = {
        name: {"type": "string", "description": about} for name, about in PROFILE_KEYS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": CONFIG_FILE_NAME,
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "settings": {
                "type": "object",
                "additionalProperties": False,
                "properties": settings,
            },
            "profiles": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": profile,
                },
            },
        },
    }


def _read_file_values(
    file: ConfigFile, fields: Mapping[str, dataclasses.Field[object]]
) -> dict[str, object]:
    check_keys(file.path, "setting", file.settings, fields)
    values = dict(file.settings)
    for name, value in values.items():
        wanted, meaning = get_toml_type(fields[name].default)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            reason = f"setting {name} must be {meaning}, not {value!r}"
            raise InvalidConfigFile(path=file.locate(name), reason=reason)
        if name in _PATH_SETTINGS:
            values[name] = file.resolve_path(str(value))
        values[name] = _parse_value(name, values[name], fields[name].default)
    return values


def _fill_path_defaults(values: dict[str, object]) -> dict[str, object]:
    """Fill empty locations with their defaults in the data folder, and make paths absolute."""
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
        raise ConfigurationError(setting="verify", reason="expected full or footer")
    if settings.verify == "off" and not settings.listens_on_loopback:
        raise ConfigurationError(
            setting="verify", reason="off is allowed on loopback only, for measurements"
        )
    for setting, port in (("port", settings.port), ("s3_port", settings.s3_port)):
        if not 0 <= port < 65536:
            raise ConfigurationError(setting=setting, reason="expected a port from 0 to 65535")
    for setting, choices in _ALLOWED_VALUES.items():
        if getattr(settings, setting) not in choices:
            reason = f"expected {', '.join(choices[:-1])} or {choices[-1]}"
            raise ConfigurationError(setting=setting, reason=reason)
    for name in Settings.__dataclass_fields__:
        value = getattr(settings, name)
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            raise ConfigurationError(setting=name, reason=f"expected a finite number, got {value}")
        if value < 0:
            raise ConfigurationError(setting=name, reason="expected 0 or more")
        if name in _POSITIVE_SETTINGS and not value:
            raise ConfigurationError(setting=name, reason="expected more than 0")
    return settings


def _parse_value(name: str, value: object, default: object) -> object:
    """Convert `value`, usually text, to the type of the default."""
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
        reason = f"expected {wanted}, got {value!r}"
        raise ConfigurationError(setting=name, reason=reason) from None
