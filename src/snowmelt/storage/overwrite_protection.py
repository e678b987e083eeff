"""Verify that a file that a command writes replaces no file in use.

Files are compared by device and inode, and folders also by their path in the file system. So
symbolic links, hard links, `..`, different case and bind mounts are handled.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from snowmelt.errors import OutputRefused

_CATALOG_FILE_NAME = "catalog.db"
_URL_SCHEME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MOUNTINFO_PATH = "/proc/self/mountinfo"
_OCTAL_ESCAPE_PATTERN = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """A file that a command is going to write.

    Attributes:
        option: The option or clause that specifies it, for error messages.
        path: Path, `file:` URL, or URL of a store, as the user wrote it.
        overwrite: Whether the user allows replacing an existing file.
        appends: Whether the command appends to an existing file.
        remedy: How the user can allow a replacement, for error messages. Empty if that is not
            possible.
    """

    option: str
    path: str
    overwrite: bool = False
    appends: bool = False
    remedy: str = ""

    def make_error(self, reason: str) -> OutputRefused:
        """Create an error about this output."""
        return OutputRefused(option=self.option, path=repr(self.path), reason=reason)


def check_outputs(
    outputs: Iterable[CommandOutput], *, inputs: Iterable[str] = (), reserved: Iterable[str] = ()
) -> None:
    """Verify that outputs do not replace inputs, each other, or files of a deployment.

    Args:
        outputs: Files that the command is going to write.
        inputs: Files that the command reads. 0 means standard input.
        reserved: Files and folders of the deployment. A folder that contains `catalog.db` and
            `keys`, `stage` or `warehouse` is always reserved.

    Raises:
        OutputRefused: If an output is an input, another output, a file in a reserved folder, or
            an existing file that it may not replace.
    """
    wanted = list(outputs)
    if not wanted:
        return
    read = _CommandInputs(inputs)
    places = [*filter(None, reserved)]
    for number, output in enumerate(wanted):
        local = to_local_path(output.path)
        if local is None:
            _check_remote_output(output, read, places)
        else:
            _check_local_output(output, local, read, places)
        for other in wanted[:number]:
            if _is_same_file(output.path, other.path):
                raise output.make_error(
                    f"{other.option} writes the same file. Give each its own file"
                )


def check_output_outside_deployment(
    option: str, location: str, *, reserved: Iterable[str] = ()
) -> None:
    """Verify that a folder or file that the command creates is outside of all deployments.

    Raises:
        OutputRefused: If it is inside a deployment.
    """
    output, local, places = (
        CommandOutput(option, location),
        to_local_path(location),
        [*filter(None, reserved)],
    )
    if local is None:
        _check_remote_output(output, _CommandInputs(()), places)
    else:
        _check_not_reserved(output, local, places)


def to_local_path(location: str) -> Path | None:
    """Return the local path of a location, or None for the URL of a remote store."""
    if not _URL_SCHEME_PATTERN.match(location):
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" else None


class _CommandInputs:
    """The inputs of a command, by identity and by URL."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.identities: dict[tuple[int, int], str] = {}
        self.urls: set[str] = set()
        piped = _path_identity(0)
        if piped is not None:
            self.identities[piped] = "standard input"
        for each in inputs:
            local = to_local_path(each)
            if local is None:
                self.urls.add(_normalize_url(each))
            elif (found := _path_identity(local)) is not None:
                self.identities.setdefault(found, each)


def _check_local_output(
    output: CommandOutput, path: Path, inputs: _CommandInputs, reserved: list[str]
) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        _check_not_reserved(output, path, reserved)
        if path.is_symlink():
            raise output.make_error(
                "it is a symbolic link to a file that does not exist. Name the file itself"
            ) from None
        return
    except OSError as error:
        raise output.make_error(f"{error.strerror}. Name another file") from error
    if stat.S_ISDIR(status.st_mode):
        raise output.make_error("it is a folder. Name a file")
    source = inputs.identities.get((status.st_dev, status.st_ino))
    if source is not None and stat.S_ISREG(status.st_mode):
        raise output.make_error(f"it is an input ({source}). Name another file")
    _check_not_reserved(output, path, reserved)
    if output.appends:
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise output.make_error(
                "the file has other names (hard links), which would change with it. "
                "Name another file"
            )
        return
    if not stat.S_ISREG(status.st_mode):
        raise output.make_error("it is no regular file. Name a regular file")
    _check_overwrite(output)


def _check_remote_output(
    output: CommandOutput, inputs: _CommandInputs, reserved: list[str]
) -> None:
    url = _normalize_url(output.path)
    if url in inputs.urls:
        raise output.make_error("it is an input. Name another object")
    for each in reserved:
        if to_local_path(each) is None and f"{url}/".startswith(
            _normalize_url(each).rstrip("/") + "/"
        ):
            raise output.make_error(f"{each} belongs to the deployment. Name an object elsewhere")


def _check_overwrite(output: CommandOutput) -> None:
    if not output.overwrite:
        remedy = f", or {output.remedy} to replace it" if output.remedy else ""
        raise output.make_error(f"the file already exists. Name a new file{remedy}")


def make_output_exists_error(output: CommandOutput) -> OutputRefused:
    """Create the error for a file that was created while the command ran."""
    return output.make_error(
        "another program created it while the command ran. Run the command again"
    )


def _check_not_reserved(output: CommandOutput, path: Path, reserved: list[str]) -> None:
    """Reject a path that resolves to a folder of a deployment."""
    real = Path(os.path.realpath(path))
    # Check the link and its target, because writing may change either.
    for each in {real, Path(os.path.realpath(path.parent)) / path.name}:
        above = [each, *each.parents]
        for folder in above:
            if folder != each and _is_data_folder(folder):
                raise output.make_error(
                    f"{folder} is a data folder of Snowmelt. Name a file outside of it"
                )
        for place in reserved:
            local = to_local_path(place)
            if local is not None and _is_within(each, above, local):
                raise output.make_error(
                    f"{place} belongs to the deployment. Name a file outside of it"
                )


def _is_data_folder(folder: Path) -> bool:
    """Return True if a folder looks like a data folder. A catalog.db alone is not sufficient."""
    if not (folder / _CATALOG_FILE_NAME).is_file():
        return False
    return any((folder / name).exists() for name in ("keys", "stage", "warehouse"))


def _is_within(path: Path, ancestors: list[Path], folder: Path) -> bool:
    own = _path_identity(folder)
    if own is not None and any(_path_identity(each) == own for each in ancestors):
        return True
    real = Path(os.path.realpath(folder))
    if real in ancestors:
        return True
    # A bind mount of a subfolder does not have the subfolder's ancestors.
    device, place = _find_path_on_device(path)
    own_device, own_place = _find_path_on_device(real)
    return device is not None and device == own_device and place.is_relative_to(own_place)


def _is_same_file(one: str, other: str) -> bool:
    first, second = to_local_path(one), to_local_path(other)
    if first is None or second is None:
        return first is second is None and _normalize_url(one) == _normalize_url(other)
    known = _path_identity(first)
    if known is not None and known == _path_identity(second):
        return True
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    folder = _path_identity(first.absolute().parent)
    return (
        folder is not None
        and folder == _path_identity(second.absolute().parent)
        and first.name.casefold() == second.name.casefold()
    )


def file_identity(location: str) -> tuple[int, int] | None:
    """Return device and inode of a local file, or None for other locations."""
    local = to_local_path(location)
    return None if local is None else _path_identity(local)


def _path_identity(path: Path | int) -> tuple[int, int] | None:
    """Return device and inode of a path after links, or None if it is missing, a pipe or a terminal."""
    try:
        status = os.stat(path)  # noqa: PTH116 - descriptor 0 is no Path
    except (OSError, ValueError):
        return None
    usual = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if usual else None


def _normalize_url(url: str) -> str:
    """Normalize a store's URL, so that all spellings of an object are equal."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("?")[0].partition("/")
    return f"{scheme.lower()}://{bucket}/{unquote(key)}"


def _find_path_on_device(path: Path) -> tuple[bytes | None, Path]:
    """Return the device of a path and its path within that file system (Linux only)."""
    found: tuple[bytes | None, Path] = (None, path)
    longest = -1
    for device, root, point in _read_mounts():
        if len(point.parts) >= longest and path.is_relative_to(point):
            longest = len(point.parts)
            found = (device, root / path.relative_to(point))
    return found


def _read_mounts() -> Iterator[tuple[bytes, Path, Path]]:
    try:
        lines = Path(_MOUNTINFO_PATH).read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(b" ")
        if len(fields) > 4:
            yield fields[2], _unescape_mount_path(fields[3]), _unescape_mount_path(fields[4])


def _unescape_mount_path(field: bytes) -> Path:
    return Path(
        os.fsdecode(_OCTAL_ESCAPE_PATTERN.sub(lambda found: bytes([int(found[1], 8)]), field))
    )
