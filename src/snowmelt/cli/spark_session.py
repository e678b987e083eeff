"""Local Spark session for commands: started at first use, stopped at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from snowmelt.config import Settings
from snowmelt.errors import RemoteError, SnowmeltError, UserError

Session = TypeVar("Session")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt

_STDERR_FD = 2
# Timeout of the end of a killed Java process, which first releases gigabytes of memory.
_EXIT_SECONDS = 60
_LAST_LINE_TIMEOUT_S = 5.0
# Matches a Snowmelt error in a Python traceback.
_SNOWMELT_ERROR = re.compile(r"\bsnowmelt(?:\.\w+)+: (.+)")


@contextlib.contextmanager
def opening_spark_session(*, quiet: bool = True) -> Iterator[SparkSession]:
    """Start a local Spark session and stop it at the end.

    If `quiet` is true, suppresses Java's startup messages, and logs of errors that Python raises.

    Raises:
        JavaMissing: If no Java is available.
        RemoteError: If Spark did not start (the error contains its last message), or its Java
            process ended.
    """
    from snowmelt.spark.session import local_session

    with _using_utc():
        spark = start_quietly(local_session) if quiet else local_session()
        java = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - no public API
        if quiet:
            server = getattr(spark.sparkContext, "_accumulatorServer", None)
            if server is not None:
                server.handle_error = lambda *_: None
            bridge = "Exception while sending command."
            logging.getLogger().addFilter(lambda record: record.getMessage() != bridge)
        try:
            yield spark
        except Exception as error:
            if java is None or isinstance(error, UserError):
                raise
            status = _get_exit_status(java, error)
            if status is None:
                raise
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise RemoteError(
                f"The Java process of Spark {how} while the command ran. Run the command again; if "
                "the system killed the process for its memory, stop other programs first."
            ) from error
        finally:
            # Stopping fails if Java has ended, which was already reported.
            with contextlib.suppress(Exception):
                spark.stop()


def _get_exit_status(java: subprocess.Popen[bytes], error: BaseException) -> int | None:
    """Return the exit status of Java, or None if it is running.

    The kernel closes the sockets of a killed process before its parent can read the status. After a
    connection error, this function therefore waits for the status.
    """
    from py4j.protocol import Py4JNetworkError

    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, (ConnectionError, Py4JNetworkError)):
        chain = chain.__cause__ or chain.__context__
    if chain is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return java.wait(timeout=_EXIT_SECONDS)
    return java.poll()


@contextlib.contextmanager
def _using_utc() -> Iterator[None]:
    """Set the local time zone to UTC within the block.

    PySpark converts timestamps without a zone to local times. In zones other than UTC, it raises an
    error near the years 1 and 9999.
    """
    # The C library reads TZ from the environment.
    zone = os.environ.get("TZ")  # noqa: TID251
    _set_timezone("UTC")
    try:
        yield
    finally:
        _set_timezone(zone)


def _set_timezone(timezone: str | None) -> None:
    if timezone is None:
        os.environ.pop("TZ", None)  # noqa: TID251
    else:
        os.environ["TZ"] = timezone  # noqa: TID251
    time.tzset()


def start_quietly(start: Callable[[], Session]) -> Session:
    """Call `start` and return its result. Suppresses the standard error of its child processes.

    Prints reports of external functions that wait for their service.

    Raises:
        RemoteError: If `start` failed, with the last line that it wrote.
    """
    saved = os.dup(_STDERR_FD)
    output = _JavaOutput()
    os.dup2(output.write_fd, _STDERR_FD)  # Java and its Python workers inherit this descriptor
    try:
        return start()
    except SnowmeltError:
        raise
    except Exception as error:
        os.dup2(saved, _STDERR_FD)
        output.close_write_end()
        raise RemoteError(f"Spark did not start: {output.wait_for_last_line() or error}") from error
    finally:
        os.dup2(saved, _STDERR_FD)
        os.close(saved)
        output.close_write_end()


class _JavaOutput:
    """Reads the standard error of Java and its Python workers.

    Prints the reports of external functions that wait for their service. Keeps the last nonblank line for
    error messages, and discards everything else.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._is_open = True
        self._last_line = ""
        self._thread = threading.Thread(target=self._read, name="snowmelt-java", daemon=True)
        self._thread.start()

    def close_write_end(self) -> None:
        """Close this process's copy of the write end. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self.write_fd)

    def wait_for_last_line(self) -> str:
        """Wait until Java has ended or the timeout has passed. Return the last line that is not blank."""
        self._thread.join(_LAST_LINE_TIMEOUT_S)
        return self._last_line

    def _read(self) -> None:
        from snowmelt.functions.caller.plan import WAIT_REPORT

        with os.fdopen(self._read_fd, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._last_line = line.strip() or self._last_line
                if WAIT_REPORT in line:
                    print(f"snowmelt: {line.strip()}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def opening_lake(settings: Settings, *, role: str, quiet: bool = True) -> Iterator[Snowmelt]:
    """Start a local Spark session for queries of the settings' catalog with a role.

    Raises:
        JavaMissing: If no Java is available.
        CatalogUnavailable: If the database cannot be reached.
    """
    from snowmelt.spark.snowmelt_session import Snowmelt

    with (
        opening_spark_session(quiet=quiet) as spark,
        Snowmelt(
            spark,
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
            role=role,
        ) as lake,
    ):
        yield lake


@contextlib.contextmanager
def translating_spark_errors() -> Iterator[None]:
    """Translate Spark errors within the block to a RemoteError with a one-line message.

    Raises:
        RemoteError: If Spark failed or rejected the query.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise RemoteError(_extract_message(str(error))) from error


def _extract_message(text: str) -> str:
    """Extract the message from a text that may contain plans and stack traces.

    Prefers the last Snowmelt error in the text.
    """
    ours = _SNOWMELT_ERROR.findall(text)
    if ours:
        # The last error is the outermost one. Its causes precede it.
        return str(ours[-1])
    first, _, rest = text.strip().partition("\n")
    if first.startswith("An error occurred while calling") and rest:
        # Py4J's own message. Java's message follows on the next line, after its class name.
        first = rest.partition("\n")[0].lstrip(": ").partition(": ")[2]
    first = first.partition(" SQLSTATE: ")[0]
    return first.rpartition("] ")[2] if first.startswith("[") else first
