"""The configuration file `snowmelt.toml`: settings of this machine, and connection profiles.

```toml
[settings]
data_dir = "/var/lib/snowmelt"
port = 8443

[profiles.production]
url = "https://ingest.example.com:8443"
user = "loader"
private_key = "loader.pem"
```

Relative paths in the file start at the folder of the file. The file contains no secrets, only paths
of files with secrets.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from snowmelt.errors import InvalidConfigFile, ProfileNotFound

CONFIG_FILE_NAME = "snowmelt.toml"
CONFIG_FILE_VARIABLE = "SNOWMELT_CONFIG"
PROFILE_VARIABLE = "SNOWMELT_PROFILE"
DEFAULT_PROFILE = "default"
_TABLE_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
_URL_PASSWORD = re.compile(r"://[^/@:]*:[^/@]+@")


def _profile_field(description: str) -> Any:
    return field(default=None, metadata={"about": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Connection profile: URL and credentials of a service. Fields not in the file are None."""

    name: str
    url: str | None = _profile_field("Address of the service, such as https://host:8080")
    user: str | None = _profile_field("User of the catalog")
    private_key: str | None = _profile_field("File with the private key of the user")
    role: str | None = _profile_field("Role to act as; the default role of the user if absent")
    ca_file: str | None = _profile_field("File with the certificate authority of the service")


# The keys of a profile with their descriptions.
PROFILE_KEYS = {each.name: each.metadata["about"] for each in fields(Profile) if each.metadata}
_PROFILE_PATHS = ("private_key", "ca_file")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed configuration file. Values in `settings` are not validated yet."""

    path: Path
    settings: Mapping[str, object]
    profiles: Mapping[str, Profile]
    _lines: Mapping[str, int]

    def locate(self, setting: str) -> str:
        """Return the position of a setting as `FILE:LINE`."""
        line = self._lines.get(setting)
        return f"{self.path}:{line}" if line else str(self.path)

    def resolve_path(self, text: str) -> str:
        """Make a path in the file absolute. URLs stay unchanged."""
        if "://" in text or not text:
            return text
        return str(self.path.parent.absolute() / Path(text).expanduser())

    def find_profile(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            ProfileNotFound: If the file has no profile of this name.
        """
        if name not in self.profiles:
            raise ProfileNotFound(name=name, path=self.path, names=_join(self.profiles) or "none")
        return self.profiles[name]


def find_config_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the path of this process's configuration file, or None if there is none.

    It is the file that `SNOWMELT_CONFIG` names, or else the first existing `snowmelt.toml` in the
    current folder, in the folder `snowmelt` of the user's configuration (`XDG_CONFIG_HOME`, or
    `~/.config`), and in `/etc/snowmelt`. An empty `SNOWMELT_CONFIG` means no file.
    """
    environment = os.environ if environment is None else environment
    given = environment.get(CONFIG_FILE_VARIABLE)
    if given is not None:
        return Path(given).expanduser() if given else None
    user_folder = environment.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    folders = (Path(), Path(user_folder, "snowmelt"), Path("/etc/snowmelt"))
    return next((file for each in folders if (file := each / CONFIG_FILE_NAME).is_file()), None)


def load_config_file(path: str | os.PathLike[str] | None = None) -> ConfigFile | None:
    """Read the configuration file at `path`. None: the file that `find_config_file` returns.

    Raises:
        InvalidConfigFile: If the file cannot be read or is invalid.
    """
    found = find_config_file() if path is None else Path(path).expanduser()
    return None if found is None else read_config_file(found)


def read_config_file(path: Path) -> ConfigFile:
    """Read a configuration file.

    Raises:
        InvalidConfigFile: If the file cannot be read, is not TOML, or has an unknown table or key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfigFile(path=path, reason=error.strerror or str(error)) from None
    except ValueError as error:  # not UTF-8 or not TOML; the error has line and column
        raise InvalidConfigFile(path=path, reason=str(error)) from None
    check_keys(path, "table", document, ("settings", "profiles"))
    for name in ("settings", "profiles"):
        if not isinstance(document.get(name, {}), dict):
            raise InvalidConfigFile(path=path, reason=f"{name} must be a table, [{name}]")
    settings = document.get("settings", {})
    if _URL_PASSWORD.search(str(settings.get("catalog_url", ""))) and _others_may_read(path):
        reason = "other users can read the password in catalog_url; run chmod 600 on the file"
        raise InvalidConfigFile(path=path, reason=reason)
    file = ConfigFile(path, settings, {}, _find_lines(text))
    profiles = {
        name: _make_profile(file, name, keys) for name, keys in document.get("profiles", {}).items()
    }
    return replace(file, profiles=profiles)


def find_profile(name: str | None, path: str | os.PathLike[str] | None = None) -> Profile | None:
    """Return a profile of the configuration file.

    Args:
        name: Name of the profile. None: the name in `SNOWMELT_PROFILE`, or else `default`, which
            may be missing.
        path: The configuration file. None: the file that `find_config_file` returns.

    Raises:
        ProfileNotFound: If the named profile does not exist.
        InvalidConfigFile: If the file cannot be read or is invalid.
    """
    file = load_config_file(path)
    name = name or os.environ.get(PROFILE_VARIABLE) or None
    if file is None:
        if name is not None:
            reason = "there is no snowmelt.toml"
            raise ProfileNotFound(f"Profile {name} not found: {reason}. Create one.", name=name)
        return None
    if name is None:
        return file.profiles.get(DEFAULT_PROFILE)
    return file.find_profile(name)


def check_keys(path: Path, kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check that all keys are known.

    Raises:
        InvalidConfigFile: If a key is unknown. The message suggests a similar key.
    """
    known = list(known)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Valid: {_join(known)}."
            raise InvalidConfigFile(path=path, reason=f"unknown {kind} {name!r}. {hint}")


def _make_profile(file: ConfigFile, name: str, keys: object) -> Profile:
    if not isinstance(keys, dict):
        reason = f"profile {name} must be a table, [profiles.{name}]"
        raise InvalidConfigFile(path=file.path, reason=reason)
    check_keys(file.path, f"key of profile {name}", keys, PROFILE_KEYS)
    for key, value in keys.items():
        if not isinstance(value, str):
            reason = f"{key} of profile {name} must be a string, not {value!r}"
            raise InvalidConfigFile(path=file.path, reason=reason)
    paths = {key: file.resolve_path(keys[key]) for key in _PROFILE_PATHS if key in keys}
    return Profile(name=name, **(keys | paths))


def _find_lines(text: str) -> dict[str, int]:
    """Return the line number (from 1) of each key in `[settings]`."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = _TABLE_HEADER.match(line)
        if header:
            table = header[1].strip()
        elif table == "settings" and "=" in line:
            lines.setdefault(line.partition("=")[0].strip().strip("\"'"), number)
    return lines


def _others_may_read(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
