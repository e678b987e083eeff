from __future__ import annotations

import msgspec
import pytest

from snowmelt.errors import RegistrationRefused
from snowmelt.ingest.registration_structure_check import (
    check_request_names_channels,
    find_blob_error,
    find_chunk_error,
)
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChunkChannelMessage,
    ChunkMetadata,
    ChunkStatisticsMessage,
    RegisterBlobsRequest,
)


def chunk(**changes: object) -> ChunkMetadata:
    whole = ChunkMetadata(
        database="DB",
        schema="SC",
        table="T",
        chunk_start_offset=0,
        chunk_length=100,
        channels=[ChunkChannelMessage("CH", 0, 1)],
        chunk_md5="0" * 32,
        eps=ChunkStatisticsMessage(1),
        encryption_key_id=1,
    )
    return msgspec.structs.replace(whole, **changes)


def blob(**changes: object) -> BlobMetadata:
    whole = BlobMetadata(path="x.bdec", md5="0" * 32, chunks=[chunk()], bdec_version=3)
    return msgspec.structs.replace(whole, **changes)


def test_a_whole_registration_passes() -> None:
    check_request_names_channels(RegisterBlobsRequest(blobs=[blob()]))
    assert find_blob_error(blob(), set()) is None
    assert find_chunk_error(chunk()) is None
    assert find_chunk_error(chunk(eps=ChunkStatisticsMessage(0), rowless=True)) is None


@pytest.mark.parametrize(
    ("blobs", "code"),
    [
        (None, 11),
        ([], 11),
        ([blob(chunks=None)], 12),
        ([blob(chunks=[])], 12),
        ([blob(chunks=[chunk(channels=None)])], 13),
        ([blob(), blob(chunks=[chunk(), chunk(channels=[])])], 13),
    ],
)
def test_what_has_no_channel_to_tell_refuses_the_whole_request(
    blobs: list[BlobMetadata] | None, code: int
) -> None:
    with pytest.raises(RegistrationRefused) as refused:
        check_request_names_channels(RegisterBlobsRequest(blobs=blobs))
    assert refused.value.wire_code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"path": None}, 14),
        ({"path": ""}, 14),
        ({"md5": None}, 39),
        ({"bdec_version": None}, 42),
        ({"bdec_version": 4}, 42),
        ({"chunks": [chunk(), chunk(chunk_start_offset=96)]}, 30),
    ],
)
def test_each_mistake_of_a_blob_has_its_code(changes: dict[str, object], code: int) -> None:
    refusal = find_blob_error(blob(**changes), set())
    assert refusal is not None
    assert refusal.code == code


def test_a_blob_that_came_already_is_refused() -> None:
    refusal = find_blob_error(blob(), {"x.bdec"})
    assert refusal is not None
    assert refusal.code == 41
    assert "x.bdec" in refusal.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"database": None}, 15),
        ({"schema": ""}, 16),
        ({"table": None}, 17),
        ({"chunk_md5": None}, 28),
        ({"eps": None}, 29),
        ({"eps": ChunkStatisticsMessage(0)}, 31),
        ({"eps": ChunkStatisticsMessage(-1)}, 31),
        ({"rowless": True}, 31),
        ({"chunk_length": None}, 30),
        ({"chunk_length": 0}, 30),
        ({"chunk_length": 1 << 40}, 30),
        ({"chunk_start_offset": None}, 30),
        ({"chunk_start_offset": -16}, 30),
        ({"encryption_key_id": None}, 59),
        ({"channels": [ChunkChannelMessage(None, 0, 1)]}, 18),
        ({"channels": [ChunkChannelMessage("CH", 0, 1, "a\0b")]}, 18),
        ({"channels": [ChunkChannelMessage("CH", None, 1)]}, 24),
        ({"channels": [ChunkChannelMessage("CH", -1, 1)]}, 24),
        ({"channels": [ChunkChannelMessage("CH", 0, None)]}, 21),
        ({"channels": [ChunkChannelMessage("CH", 0, 1 << 63)]}, 21),
        ({"channels": [ChunkChannelMessage("CH", 0, 1), ChunkChannelMessage("ch", 0, 1)]}, 23),
    ],
)
def test_each_mistake_of_a_chunk_has_its_code(changes: dict[str, object], code: int) -> None:
    refusal = find_chunk_error(chunk(**changes))
    assert refusal is not None
    assert refusal.code == code
