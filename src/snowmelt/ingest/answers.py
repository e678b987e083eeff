"""The answer to a registration, built from verdicts (specification of v1, §2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.ingest.structure import Refusal
from snowmelt.wire.codes import ResponseCode
from snowmelt.wire.streaming import BlobVerdict, ChannelVerdict, ChunkVerdict, RegisterResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from snowmelt.catalog.registration import Verdict
    from snowmelt.ingest.verification import Candidate
    from snowmelt.wire.streaming import ChunkMetadata, RegisterRequest


UNSETTLED = Refusal(
    ResponseCode.TRY_AGAIN,
    "The service failed on this registration; its log says why. Send it again.",
)


def answer_of(
    request: RegisterRequest,
    candidates: Iterable[Candidate],
    verdicts: Iterator[tuple[Verdict, ...]],
) -> RegisterResponse:
    """Return the answer to one request; takes one item of `verdicts` per candidate with an offer."""
    chunks = [
        _chunk_verdict(
            candidate.chunk,
            [(verdict.code, verdict.message) for verdict in next(verdicts)]
            if candidate.offer is not None
            else _same(candidate.chunk, candidate.refusal),
        )
        for candidate in candidates
    ]
    return _response(request, chunks)


def same_answer(request: RegisterRequest, refusal: Refusal) -> RegisterResponse:
    """Return an answer that tells every channel the same."""
    chunks = [
        _chunk_verdict(chunk, _same(chunk, refusal))
        for blob in request.blobs or []
        for chunk in blob.chunks or []
    ]
    return _response(request, chunks)


def _response(request: RegisterRequest, chunks: Sequence[ChunkVerdict]) -> RegisterResponse:
    remaining = iter(chunks)
    blobs = [
        BlobVerdict([next(remaining) for _ in blob.chunks or []]) for blob in request.blobs or []
    ]
    return RegisterResponse(status_code=0, message="Success", blobs=blobs)


def _same(chunk: ChunkMetadata, refusal: Refusal | None) -> list[tuple[int, str | None]]:
    # Without offer and without refusal nothing was registered: never to be told as committed.
    refusal = refusal or UNSETTLED
    return [(int(refusal.code), refusal.message)] * len(chunk.channels or [])


def _chunk_verdict(chunk: ChunkMetadata, results: Sequence[tuple[int, str | None]]) -> ChunkVerdict:
    channels = [
        ChannelVerdict(int(code), channel.channel_name, channel.client_sequencer, message)
        for channel, (code, message) in zip(chunk.channels or [], results, strict=True)
    ]
    return ChunkVerdict(chunk.database, chunk.schema, chunk.table, channels)
