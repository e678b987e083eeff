"""Ids of queries and batches: the same again for every retry, attempt and restart."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.poly1305 import Poly1305

from snowmelt.clock import SystemClock
from snowmelt.functions.calling.host import HostFile, file_name, private_folder, remove_old
from snowmelt.functions.definition import Volatility

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.functions.calling.plan import Place
    from snowmelt.functions.definition import ExternalFunction

_DIGEST_BYTES = 6
_TASKS_OF_A_FILE = 256
# A file is of no use once its task is over.
_USES_KEPT_S = 24 * 3600.0
_CLEANED_ONE_IN = 64


def query_id(session: str, execution: int | str) -> str:
    """Return the id of a query.

    Args:
        session: The Spark session's UUID.
        execution: The id of the query's root execution within the session.
    """
    return _named(session, f"{execution}")


def streaming_query_id(query: str, batch: int | str) -> str:
    """Return the id of a streaming query's batch, which a restart of the query does not change.

    Args:
        query: The streaming query's own UUID, kept with its checkpoint.
        batch: The number of the micro-batch.
    """
    return _named(query, f"batch {batch}")


def _named(space: str, name: str) -> str:
    try:
        root = uuid.UUID(space)
    except ValueError:
        root = uuid.uuid5(uuid.NAMESPACE_URL, space)
    return str(uuid.uuid5(root, name))


class BatchIds:
    """Ids of the batches that one use of a function makes at one place of a query.

    An id says query, stage, partition and ordinal, and a digest of function, site, number of the
    use and body: uses of several functions in a stage, two calls of one VOLATILE function, or rows
    that a shuffle brings in another order the second time, never share one.
    """

    def __init__(
        self, place: Place, function: ExternalFunction, *, folder: Path | None = None
    ) -> None:
        """Prepare.

        Args:
            place: In the query.
            function: What is called. Uses of an IMMUTABLE one may share ids: they share values.
            folder: Where processes of a task count their uses; this user's private one if None.
        """
        self._prefix = f"{place.query_id}:{place.stage}:{place.partition}"
        signature = function.signature
        self._spoken = (
            f"{place.query_id}\0{function.version}\0{signature.name}{signature.arguments_text()}"
        )
        volatile = function.volatility is Volatility.VOLATILE
        if volatile and place.site:
            self._spoken += f"\0site {place.site}"
        self._uses = _Uses(place, folder) if volatile and place.task else None
        self._set_key()

    def _set_key(self) -> None:
        # Poly1305 under a key of the query's own is a universal hash: two bodies that differ meet
        # with chance only, whatever they hold. It takes a fifth of the time of blake2b.
        self._key = hashlib.blake2b(
            self._spoken.encode("utf-8", "surrogatepass"), digest_size=32
        ).digest()

    def of(self, ordinal: int, body: bytes) -> str:
        """Return the id of a batch.

        Args:
            ordinal: Of the batch among those at this place, from 0.
            body: As it is sent, before compression.
        """
        if self._uses is not None:
            first = Poly1305.generate_tag(self._key, body) + ordinal.to_bytes(8)
            number, self._uses = self._uses.next(first), None
            if number:
                self._spoken += f"\0use {number}"
                self._set_key()
        digest = Poly1305.generate_tag(self._key, body)[:_DIGEST_BYTES].hex()
        return f"{self._prefix}:{ordinal}:{digest}"


class _Uses:
    """Numbers of the uses that begin with the same batch in one attempt at a task.

    The processes of the attempt share a file of digests. Which use gets which number is chance.
    That does no harm: they ask the same function for the same rows, so their values may change
    places between two attempts.
    """

    def __init__(self, place: Place, folder: Path | None) -> None:
        self._task = place.task
        # A file of all tasks of a query would be read from end to end too often.
        group = str(place.partition // _TASKS_OF_A_FILE)
        self._folder = folder or private_folder()
        name = file_name("uses", place.query_id, str(place.stage), group)
        self._path = self._folder / name

    def next(self, first_batch: bytes) -> int:
        """Return how many uses began with the same batch before, and count this one."""
        if secrets.randbelow(_CLEANED_ONE_IN) == 0:
            remove_old(self._folder, "uses", SystemClock(), _USES_KEPT_S)
        spoken = self._task.encode() + b"\0" + first_batch
        file = HostFile(self._path)
        try:
            return file.count(hashlib.blake2b(spoken, digest_size=16).digest())
        finally:
            file.close()
