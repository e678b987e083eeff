"""PyIceberg `FileIO` over Snowmelt's stores for files that are not on a local disk.

All access uses the same address and credentials (those of the environment, see `snowmelt.storage`),
and PyIceberg needs no cloud libraries. PyIceberg itself opens local files.
"""

from __future__ import annotations

import io

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io

from snowmelt.errors import AlreadyExists
from snowmelt.storage.store import Store
from snowmelt.table.native_file import is_local_location, open_stored_file, resolve_location
from snowmelt.table.warehouse_paths import Warehouse


def make_file_io(location: str) -> FileIO:
    """Return the `FileIO` for an address."""
    return load_file_io({}, location) if is_local_location(location) else StoreFileIO()


class StoreFileIO(FileIO):
    """`FileIO` for full addresses (`s3://bucket/path`) in stores of `snowmelt.storage`."""

    def new_input(self, location: str) -> StoreInputFile:
        """Return a file for reading."""
        return StoreInputFile(location)

    def new_output(self, location: str) -> StoreOutputFile:
        """Return a file for writing."""
        return StoreOutputFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Idempotent."""
        store, path = resolve_location(location if isinstance(location, str) else location.location)
        store.delete(path)


class _StoreFile:
    """File of a store."""

    def __init__(self, location: str) -> None:
        super().__init__(location)  # type: ignore[call-arg]  # PyIceberg's class comes next
        self._store, self._path = resolve_location(location)

    def __len__(self) -> int:
        """Return the length in bytes.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        info = self._store.head(self._path)
        if info is None:
            raise FileNotFoundError(self._path)
        return info.size

    def exists(self) -> bool:
        """Return True if the file exists."""
        return self._store.head(self._path) is not None


class StoreInputFile(_StoreFile, InputFile):
    """File of a store, for reading."""

    def open(self, seekable: bool = True) -> io.BytesIO | io.BufferedReader:
        """Return the file as a stream. A large file is fetched in ranges.

        Raises:
            FileNotFoundError: If the file does not exist.
            StageUnavailable: If the store does not respond.
        """
        del seekable
        return open_stored_file(self._store, self._path)


class StoreOutputFile(_StoreFile, OutputFile):
    """File of a store, for writing."""

    def create(self, overwrite: bool = False) -> _ObjectWriteStream:
        """Return a stream that writes the file when it is closed."""
        return _ObjectWriteStream(self._store, self._path, create_only=not overwrite)

    def to_input_file(self) -> StoreInputFile:
        """Return the file for reading."""
        return StoreInputFile(self._location)


class WholeOutputFile(OutputFile):
    """File of a warehouse that is written whole: after a crash, it is complete or does not exist."""

    def __init__(self, warehouse: Warehouse, path: str, location: str | None = None) -> None:
        """Prepare a file. `location` is its address in metadata. None: its warehouse address."""
        super().__init__(location or warehouse.to_address(path))
        self._store, self._path = warehouse.store, path

    def __len__(self) -> int:
        """Return the length of the file in bytes, or 0 if it does not exist."""
        info = self._store.head(self._path)
        return 0 if info is None else info.size

    def exists(self) -> bool:
        """Return True if the file exists."""
        return self._store.head(self._path) is not None

    def create(self, overwrite: bool = False) -> _ObjectWriteStream:
        """Return a stream that writes the file when it is closed."""
        return _ObjectWriteStream(self._store, self._path, create_only=not overwrite)

    def to_input_file(self) -> InputFile:
        """Not supported: readers use the addresses of the warehouse."""
        raise NotImplementedError


class PublishedOutputFile(WholeOutputFile):
    """File that is written once. Its location is its address for engines on other machines.

    If another process published a file of the same path first, that file is kept.
    """

    def __init__(self, warehouse: Warehouse, path: str) -> None:
        super().__init__(warehouse, path, warehouse.to_public_address(path))

    def create(self, overwrite: bool = False) -> _ObjectWriteStream:
        """Return a stream that publishes the file when it is closed."""
        del overwrite
        return _PublishingStream(self._store, self._path, create_only=True)


class BufferedOutputFile(OutputFile):
    """File in memory, which `flush` writes to another one.

    PyIceberg's writers also close a file after an error. A manifest without its last entries would look
    complete.
    """

    def __init__(self, target: OutputFile) -> None:
        super().__init__(target.location)
        self._target = target
        self._stream = _RetainedStream()

    def __len__(self) -> int:
        """Return the number of bytes written so far."""
        return self._stream.tell()

    def exists(self) -> bool:
        """Return True if the other file exists."""
        return self._target.exists()

    def create(self, overwrite: bool = False) -> _RetainedStream:
        """Return a stream in memory."""
        del overwrite
        self._stream = _RetainedStream()
        return self._stream

    def to_input_file(self) -> InputFile:
        """Return the other file for reading."""
        return self._target.to_input_file()

    def flush(self) -> None:
        """Write the other file. Call it when everything is written."""
        with self._target.create(overwrite=True) as stream:
            stream.write(self._stream.getvalue())


class _RetainedStream(io.BytesIO):
    """Stream in memory whose content outlasts `close`."""

    def close(self) -> None:
        """Do nothing."""


class _ObjectWriteStream(io.BytesIO):
    """Stream that writes the whole object on close, and nothing if the writer fails."""

    def __init__(self, store: Store, path: str, *, create_only: bool) -> None:
        super().__init__()
        self._store, self._path, self._create_only = store, path, create_only
        self._failed = False

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        self._failed = kind is not None
        self.close()

    def close(self) -> None:
        if not self.closed and not self._failed:
            # Make each file durable when it is written, because another process may commit it.
            self._store.put(
                self._path, self.getvalue(), create_only=self._create_only, durable=True
            )
        super().close()


class _PublishingStream(_ObjectWriteStream):
    """Stream that does not replace an existing file."""

    def close(self) -> None:
        try:
            super().close()
        except AlreadyExists:
            io.BytesIO.close(self)
