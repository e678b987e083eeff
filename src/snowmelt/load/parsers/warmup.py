"""Compiled readers of the parsers, and their compilation in the background.

After an installation, Numba takes about 6 s to compile each format; the exact readers parse in the
meantime. A separate process compiles and fills Numba's cache, so that compilation does not hold
this process's global interpreter lock.
"""

from __future__ import annotations

import fcntl
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from snowmelt.clock import SystemClock
from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ByteReader, ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema

_log = logging.getLogger("snowmelt.load")

_SCHEMA = TableSchema(
    1,
    (
        Column("N", LogicalType.FIXED, 1, precision=18, scale=0),
        Column("P", LogicalType.FIXED, 2, precision=12, scale=2),
        Column("R", LogicalType.REAL, 3),
        Column("T", LogicalType.TEXT, 4, length=100),
        Column("D", LogicalType.DATE, 5),
        Column("AT", LogicalType.TIMESTAMP_NTZ, 6, scale=6),
        Column("Z", LogicalType.TIMESTAMP_TZ, 7, scale=6),
        Column("O", LogicalType.BOOLEAN, 8),
    ),
)
_VALUES = (
    *("1", "2.50", "0.5", "West", "2013-01-02"),
    *("2013-01-02 03:04:05.678", "2013-01-02 03:04:05+01:00", "true"),
)
# Minimum size of the sample. The exact reader would parse a smaller sample.
_SAMPLE_BYTES = 1 << 16
_COMPILER_PROGRAM = (
    "import sys; _, name, *sys.path = sys.argv; from snowmelt.load.parsers import warmup;"
    " warmup.COMPILED_READERS[name].compile_into_cache()"
)


class CompiledReader:
    """State of the compiled reader of one format. Thread-safe."""

    def __init__(self, module: str, last_kernel: str, sample: Callable[[], None]) -> None:
        """Initialize.

        Args:
            module: Module of `snowmelt.load.parsers` that imports the kernels.
            last_kernel: Name of the kernel that is compiled last.
            sample: Parses a sample that compiles all kernels.
        """
        self._module = f"snowmelt.load.parsers.{module}"
        self._last_kernel = last_kernel
        self._parse_sample = sample
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._caller = threading.local()
        self.is_ready = False

    def can_be_used(self) -> bool:
        """Return True if the reader is compiled. If not, start the compilation in the background."""
        if self.is_ready or hasattr(self._caller, "compiles"):
            return True
        with self._lock:
            if self._thread is None:
                import_module(self._module)
                self.is_ready = import_module("snowmelt.jit").is_kernel_cached(self._last_kernel)
                if not self.is_ready:
                    self._thread = threading.Thread(
                        target=self._prepare, name="load-compiling", daemon=True
                    )
                    self._thread.start()
        return self.is_ready

    def wait_until_ready(self) -> None:
        """Wait for a compilation that has started."""
        if self._thread is not None:
            self._thread.join()

    def warm_up(self) -> None:
        """Compile or load the kernels into this process, by parsing records of every type."""
        self._caller.compiles = True
        try:
            self._parse_sample()
        finally:
            del self._caller.compiles

    def compile_into_cache(self) -> None:
        """Compile into numba's cache. A lock file prevents concurrent compilation."""
        import_module(self._module)
        folder = import_module("snowmelt.jit").find_cache_folder()
        with Path(folder, "warmup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.warm_up()

    def _prepare(self) -> None:
        name = next(name for name, reader in COMPILED_READERS.items() if reader is self)
        clock = SystemClock()
        began = clock.monotonic()
        try:
            if import_module("snowmelt.jit").find_cache_folder() is not None:
                # If this process ends first, the subprocess continues, and a later process finds
                # the cache.
                subprocess.run(  # noqa: S603 - this interpreter and a constant
                    (sys.executable, "-c", _COMPILER_PROGRAM, name, *sys.path),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
            # Load from the cache, and compile the kernels that the subprocess did not.
            self.warm_up()
        except Exception:  # noqa: BLE001 - the exact reader reads the same rows
            _log.exception("Cannot compile the reader of %s", name)
            return
        self.is_ready = True
        _log.info("the compiled reader of %s took %.1f s", name, clock.monotonic() - began)


def warm_up_parsers() -> None:
    """Compile or load the kernels of all parsers into this process."""
    for reader in COMPILED_READERS.values():
        reader.warm_up()


def _parse_delimited_sample() -> None:
    quoted = ",".join(f'"{value}"' for value in _VALUES)
    _parse("DELIMITED", f"{','.join(_VALUES)}\n{quoted}\n", delimiter=",", enclosed_by='"')


def _parse_json_sample() -> None:
    pairs = zip((column.name for column in _SCHEMA.columns), _VALUES, strict=True)
    members = ", ".join(f'"{name}": "{value}"' for name, value in pairs)
    _parse("JSON", f'{{{members}}}\n{{"N": 1, "P": 2.50, "R": 0.5, "O": true}}\n')


def _parse(name: str, records: str, **parameters: str) -> None:
    found = definition(name)
    assert found is not None  # noqa: S101 - for mypy: both are there
    sample = (records * (_SAMPLE_BYTES // len(records) + 1)).encode()
    portion = Portion(InputFile("sample"))
    parser = found.build_phase(parameters)
    for _ in parser.parse(ByteReader(iter((sample,))), ParseTarget(_SCHEMA, {}), portion):
        pass


COMPILED_READERS = {
    "DELIMITED": CompiledReader("delimited_scanner", "parse_booleans", _parse_delimited_sample),
    "JSON": CompiledReader("json_columns", "copy_texts", _parse_json_sample),
}
