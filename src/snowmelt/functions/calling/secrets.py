"""Secrets by reference: `env:NAME`, and `file:PATH` in one folder, read where they are used."""

from __future__ import annotations

from pathlib import Path

from snowmelt import config
from snowmelt.functions.refusals import SecretMissing

_MAX_BYTES = 64 * 1024


class Secrets:
    """Looks secrets up; a file is read again when it has changed. No error tells a value."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Prepare.

        Args:
            folder: Of the files that may be read, wherever symbolic links lead. None: none may.
        """
        self._folder = None if folder is None else Path(folder)
        self._read: dict[str, tuple[tuple[int, int, int], str]] = {}

    def value(self, reference: str) -> str:
        """Return what a reference leads to, without the white space around it.

        Raises:
            SecretMissing: It leads nowhere, or to nothing that a header could carry; names the
                reference.
        """
        kind, _, name = reference.partition(":")
        match kind:
            case "env":
                found = config.environment_value(name)
                if found is None:
                    raise SecretMissing(reference=reference, reason="the variable is not set")
            case "file":
                found = self._from_file(reference, self._path(reference, name))
            case _:
                # Somebody may have put the secret itself here.
                reason = "a reference begins with env: or file:"
                raise SecretMissing(reference="of this integration", reason=reason)
        found = found.strip()
        if not found or not found.isprintable():
            raise SecretMissing(reference=reference, reason="it is empty, or has several lines")
        return found

    def _path(self, reference: str, name: str) -> Path:
        """Return the file that a reference leads to, without symbolic links.

        Whoever may create an integration chooses the path, and where its content is sent.
        """
        if self._folder is None:
            reason = "no folder is set for files of secrets. Set SNOWMELT_SECRETS_DIR"
            raise SecretMissing(reference=reference, reason=reason)
        try:
            folder = self._folder.resolve()
            path = (folder / name).resolve()
        except (OSError, RuntimeError, ValueError):
            raise SecretMissing(reference=reference, reason="the path is invalid") from None
        if not path.is_relative_to(folder) or path == folder:
            reason = f"it is outside the folder of secrets, {folder} (SNOWMELT_SECRETS_DIR)"
            raise SecretMissing(reference=reference, reason=reason)
        return path

    def _from_file(self, reference: str, path: Path) -> str:
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._read.get(reference)
            if known is not None and known[0] == version:
                return known[1]
            if stat.st_size > _MAX_BYTES:
                raise SecretMissing(reference=reference, reason="the file is too large")
            text = path.read_text()
        except OSError as error:
            raise SecretMissing(reference=reference, reason=error.strerror) from None
        except ValueError:
            raise SecretMissing(reference=reference, reason="the file holds no text") from None
        self._read[reference] = (version, text)
        return text
