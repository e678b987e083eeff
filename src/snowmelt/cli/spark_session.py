"""A local Spark session for commands: started at first use, stopped at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from snowmelt.config import Settings
from snowmelt.errors import RemoteError, SnowmeltError, UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from snowmelt.spark.snowmelt_session import Snowmelt

_STDERR_FD = 2
# How Python writes an error of ours, whichever room it is of.
_SNOWMELT_ERROR = re.compile(r"\bsnowmelt(?:\.\w+)+: (.+)")


@contextlib.contextmanager
def opening_spark_session(*, quiet: bool = True) -> Iterator[SparkSession]:
    """Start a local Spark session; at the end it is stopped.

    Java greets with a dozen lines and logs what Python raises anyhow; `quiet` drops all that.

    Raises:
        JavaMissing: There is no Java.
        RemoteError: Spark did not start, with its last words; or its Java process ended.
    """
    from snowmelt.spark.session import local_session

    with _using_utc():
        spark = _start_quietly(local_session) if quiet else local_session()
        java = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing else tells
        if quiet:
            server = getattr(spark.sparkContext, "_accumulatorServer", None)
            if server is not None:
                server.handle_error = lambda *_: None
            bridge = "Exception while sending command."
            logging.getLogger().addFilter(lambda record: record.getMessage() != bridge)
        try:
            yield spark
        except Exception as error:
            if java is None or isinstance(error, UserError) or java.poll() is None:
                raise
            status = java.poll()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise RemoteError(
                f"The Java process of Spark {how} while the command ran. Run the command again; if "
                "the system killed the process for its memory, stop other programs first."
            ) from error
        finally:
            # It fails where Java has ended, which is what is told then.
            with contextlib.suppress(Exception):
                spark.stop()


@contextlib.contextmanager
def _using_utc() -> Iterator[None]:
    """Let instants be shown in UTC, whatever the zone of this machine.

    PySpark makes local times of them that do not say of which zone, and raises at the ends of the
    calendar where the zone is not UTC.
    """
    # The C library reads it in the environment.
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


def _start_quietly(start: Callable[[], SparkSession]) -> SparkSession:
    with tempfile.TemporaryFile() as words:
        saved = os.dup(_STDERR_FD)
        os.dup2(words.fileno(), _STDERR_FD)  # Java inherits it, and keeps it
        try:
            return start()
        except SnowmeltError:
            raise
        except Exception as error:
            words.seek(0)
            last = words.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise RemoteError(f"Spark did not start: {last or error}") from error
        finally:
            os.dup2(saved, _STDERR_FD)
            os.close(saved)


@contextlib.contextmanager
def opening_lake(settings: Settings, *, role: str, quiet: bool = True) -> Iterator[Snowmelt]:
    """Open the settings' catalog in a local Spark session, for queries of a role.

    Raises:
        JavaMissing: There is no Java.
        CatalogUnavailable: The database cannot be reached.
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
    """Turn what Spark raises into a sentence: our own error in it if there is one.

    Raises:
        RemoteError: Spark failed, or refused.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise RemoteError(_extract_message(str(error))) from error


def _extract_message(text: str) -> str:
    """Return the sentence in a message that may hold plans and traces of two languages."""
    ours = _SNOWMELT_ERROR.findall(text)
    if ours:
        # What an error came from stands before it.
        return str(ours[-1])
    first, _, rest = text.strip().partition("\n")
    if first.startswith("An error occurred while calling") and rest:
        # The bridge's own words; Java's come after its class, on the next line.
        first = rest.partition("\n")[0].lstrip(": ").partition(": ")[2]
    first = first.partition(" SQLSTATE: ")[0]
    return first.rpartition("] ")[2] if first.startswith("[") else first
