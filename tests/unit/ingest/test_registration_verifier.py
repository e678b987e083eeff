from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from snowmelt.errors import CatalogUnavailable
from snowmelt.ingest.registration_structure_check import MAX_BLOB_BYTES
from snowmelt.ingest.registration_verifier import CatalogCache, Registrant, VerificationDepth
from snowmelt.wire.column_statistics import NO_STORED_STATISTICS
from snowmelt.wire.streaming import BlobMetadata, ChunkMetadata

if TYPE_CHECKING:
    from unit.ingest.conftest import World


SENDER = Registrant("LOADER", None)


def rows() -> list[dict[str, Any]]:
    return [
        {"id": 1, "x": float("nan"), "name": "a" * 40},
        {"id": -5, "x": -0.0, "name": None},
        {"id": 7, "x": None, "name": "\U0010ffff" * 20},
    ]


def refusal(
    world: World,
    blob: BlobMetadata,
    sender: Registrant = SENDER,
    depth: VerificationDepth = VerificationDepth.FULL,
) -> Any:
    candidate = world.verify(blob, sender, depth)
    if candidate.offer is None:
        assert candidate.rejection is not None
        return int(candidate.rejection.code)
    return candidate.offer.rejection and candidate.offer.rejection[0]


def only_chunk(blob: BlobMetadata) -> ChunkMetadata:
    assert blob.chunks is not None
    (chunk,) = blob.chunks
    return chunk


def statistics_of(blob: BlobMetadata, column: str) -> Any:
    statistics = only_chunk(blob).eps
    assert statistics is not None
    return statistics.columns[column]


def changed(blob: BlobMetadata, column: str, **changes: object) -> BlobMetadata:
    """The same blob, its statistics of one column changed."""
    copy = msgspec.convert(msgspec.to_builtins(blob), BlobMetadata)
    found = statistics_of(copy, column)
    for name, value in changes.items():
        setattr(found, name, value)
    return copy


@pytest.fixture
def blob(world: World) -> BlobMetadata:
    return world.blob(world.open(), 1, rows())


@pytest.mark.parametrize("depth", list(VerificationDepth))
def test_a_true_blob_passes_at_every_depth(
    world: World, blob: BlobMetadata, depth: VerificationDepth
) -> None:
    assert refusal(world, blob, depth=depth) is None


@pytest.mark.parametrize(
    ("column", "changes", "code"),
    [
        ("ID", {"minIntValue": -4}, 48),
        ("ID", {"maxIntValue": 6}, 48),
        ("X", {"minRealValue": 1.0}, 48),
        ("NAME", {"nullCount": 2}, 33),
        ("NAME", {"maxStrValue": "61" * 32}, 48),
    ],
)
def test_false_statistics_are_found_by_decoding_only(
    world: World, blob: BlobMetadata, column: str, changes: dict[str, object], code: int
) -> None:
    false = changed(blob, column, **changes)
    assert refusal(world, false) == code
    candidate = world.verify(false, depth=VerificationDepth.FOOTER)
    assert candidate.is_acceptable
    assert candidate.offer is not None
    assert candidate.offer.statistics == NO_STORED_STATISTICS, "what nobody compared is kept"


def test_wider_statistics_of_a_client_are_replaced_by_those_of_its_rows(
    world: World, blob: BlobMetadata
) -> None:
    wide = changed(blob, "ID", minIntValue=-100, maxIntValue=10**9)
    offer = world.offer(wide)
    ordinal = statistics_of(blob, "ID").columnId
    stored = msgspec.msgpack.decode(offer.statistics)[str(ordinal)]
    assert stored == [-5, 7, 0]


def test_a_flipped_byte_is_found_whoever_recomputes_the_checksums(
    world: World, blob: BlobMetadata
) -> None:
    stored_at = f"{world.prefix}/{blob.path}"
    whole = bytearray(world.stage.get(stored_at))
    length = only_chunk(blob).chunk_length
    assert length is not None
    whole[length - 6] ^= 0xFF
    world.stage.put(stored_at, bytes(whole))
    assert refusal(world, blob) == 39
    blob.md5 = hashlib.md5(whole).hexdigest()
    assert refusal(world, blob) == 28
    only_chunk(blob).chunk_md5 = hashlib.md5(whole[:length]).hexdigest()
    assert refusal(world, blob) == 38


def test_a_file_above_the_limit_is_refused_before_it_is_read(
    world: World, blob: BlobMetadata
) -> None:
    # Without blocks on the disk; reading it would take seconds.
    assert blob.path is not None
    os.truncate(world.stage.root / world.prefix / blob.path, MAX_BLOB_BYTES + 1)
    rejection = world.offer(blob).rejection
    assert rejection is not None
    code, message = rejection
    assert code == 38
    assert message == (
        f"Blob {blob.path} has 2,147,483,649 bytes, expected at most 2,147,483,648. Send smaller"
        " blobs."
    )


def test_another_users_blob_and_key_are_refused(world: World, blob: BlobMetadata) -> None:
    assert refusal(world, blob, Registrant("OTHER", None)) == 34


def test_a_missing_file_may_still_be_a_repetition(world: World, blob: BlobMetadata) -> None:
    world.stage.delete(f"{world.prefix}/{blob.path}")
    candidate = world.verify(blob)
    assert candidate.offer is not None
    message = f"Blob {blob.path} is not on the stage. Upload it before its registration."
    assert candidate.offer.rejection == (38, message)


def test_a_catalog_that_is_away_refuses_no_chunk(
    world: World, blob: BlobMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(known: CatalogCache, key_id: int) -> None:
        raise CatalogUnavailable(reason="gone")

    monkeypatch.setattr(CatalogCache, "find_data_key", away)
    (found,) = world.verifier().verify_all([(world.request(blob), SENDER)])
    assert isinstance(found, CatalogUnavailable)
