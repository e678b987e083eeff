from __future__ import annotations

import datetime as dt
from dataclasses import replace

from snowmelt.catalog.streaming.commit_rules import (
    ChannelAdvance,
    ChannelCommitState,
    ChunkOffer,
    CommitCode,
    CommitDecisionInputs,
    LastCommittedChunk,
    TableCommitState,
    apply_accepted_chunk,
    decide_commit,
)
from snowmelt.schema.types import TableName
from snowmelt.wire.streaming import ResponseCode

NAME = TableName("DB", "PUBLIC", "T")
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)


def _ledger(**channels: int) -> CommitDecisionInputs:
    return CommitDecisionInputs(
        NOW,
        tables={NAME: TableCommitState(1, NAME, 0, 1)},
        prefix_owners={"p": "U"},
        effective_roles={("U", "R"): "R"},
        key_scopes={5: (1, "U")},
        channels={
            (1, name): ChannelCommitState(
                number, 0, row, None, "U", LastCommittedChunk(None, None, None, None, None), 0, 0
            )
            for number, (name, row) in enumerate(channels.items())
        },
    )


def _offer(*rows_of: tuple[str, int, int | None]) -> ChunkOffer:
    return ChunkOffer(
        path="a_p_1_0.bdec",
        blob_md5="",
        prefix="p",
        user="U",
        role="R",
        table=NAME,
        offset=0,
        length=100,
        md5="m",
        key_id=5,
        rows=10,
        schema_version=1,
        statistics=b"",
        first_insert_ms=None,
        last_insert_ms=None,
        channels=tuple(
            ChannelAdvance(name, 0, row_sequencer, None, None, rows)
            for name, row_sequencer, rows in rows_of
        ),
    )


def test_codes_are_those_of_the_wire() -> None:
    # The catalog may not import the wire; the numbers must agree all the same.
    known = {code.value for code in ResponseCode}
    assert {code.value for code in CommitCode} <= known
    for name in ("STALE_CLIENT_SEQUENCER", "ROW_SEQUENCER_NOT_NEXT", "SIBLING_REFUSED", "REOPEN"):
        assert int(CommitCode[name]) == int(ResponseCode[name])


def test_judging_changes_nothing() -> None:
    ledger, offer = _ledger(A=0), _offer(("A", 1, None))
    assert decide_commit(offer, ledger) == decide_commit(offer, ledger)
    assert ledger == _ledger(A=0)


def test_accepting_gives_the_next_number_and_makes_the_chunk_known() -> None:
    ledger, offer = _ledger(A=0), _offer(("A", 1, None))
    verdicts, table = decide_commit(offer, ledger)
    assert table is not None
    assert apply_accepted_chunk(offer, table, ledger) == 1
    assert decide_commit(offer, ledger) == (verdicts, None)


def test_a_chunk_without_rows_moves_its_channels_alone_and_they_know_it() -> None:
    ledger = _ledger(A=0)
    offer = replace(_offer(("A", 1, None)), rows=0)
    assert apply_accepted_chunk(offer, ledger.tables[NAME], ledger) == 0
    assert (ledger.chunks, ledger.channels[1, "A"].row_sequencer) == ({}, 1)
    (verdict,), table = decide_commit(offer, ledger)
    assert (verdict.is_replay, table) == (True, None)
    (verdict,), _ = decide_commit(replace(offer, md5="other"), ledger)
    assert verdict.code == CommitCode.ROW_SEQUENCER_NOT_NEXT


def test_rows_and_bytes_of_a_shared_chunk_are_divided_by_rows() -> None:
    ledger, offer = _ledger(A=0, B=0), _offer(("A", 1, 3), ("B", 1, 7))
    apply_accepted_chunk(offer, ledger.tables[NAME], ledger)
    counts = [(state.rows, state.bytes) for state in ledger.channels.values()]
    assert counts == [(3, 30), (7, 70)]


def test_a_whole_chunk_is_known_by_one_channel_that_remembers_it() -> None:
    ledger, offer = _ledger(A=0, B=0), _offer(("A", 1, None), ("B", 1, None))
    apply_accepted_chunk(offer, ledger.tables[NAME], ledger)
    ledger.chunks.clear()
    ledger.channels[1, "B"].row_sequencer = 9
    ledger.channels[1, "B"].last_chunk = LastCommittedChunk(0, "other", 0, "m", 5)
    assert [verdict.code for verdict in decide_commit(offer, ledger)[0]] == [0, 0]
    ledger.channels[1, "B"].row_sequencer = 0
    assert [verdict.code for verdict in decide_commit(offer, ledger)[0]] == [21, 22]
