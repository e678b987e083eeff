"""Ids of queries and batches: the same again for every retry, attempt and restart."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.poly1305 import Poly1305

if TYPE_CHECKING:
    from snowmelt.functions.calling.plan import Place
    from snowmelt.functions.definition import ExternalFunction

_DIGEST_BYTES = 6


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

    An id says query, stage, partition and ordinal, and a digest of function and body: uses of
    several functions in a stage, or rows that a shuffle brings in another order the second time,
    never share one.
    """

    def __init__(self, place: Place, function: ExternalFunction) -> None:
        self._prefix = f"{place.query_id}:{place.stage}:{place.partition}"
        signature = function.signature
        spoken = (
            f"{place.query_id}\0{function.version}\0{signature.name}{signature.arguments_text()}"
        )
        # Poly1305 under a key of the query's own is a universal hash: two bodies that differ meet
        # with chance only, whatever they hold. It takes a fifth of the time of blake2b.
        self._key = hashlib.blake2b(
            spoken.encode("utf-8", "surrogatepass"), digest_size=32
        ).digest()

    def of(self, ordinal: int, body: bytes) -> str:
        """Return the id of a batch.

        Args:
            ordinal: Of the batch among those at this place, from 0.
            body: As it is sent, before compression.
        """
        digest = Poly1305.generate_tag(self._key, body)[:_DIGEST_BYTES].hex()
        return f"{self._prefix}:{ordinal}:{digest}"
