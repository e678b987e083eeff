"""A check finds and names each kind of damage, and reports nothing for undamaged tables."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.integrity.findings import Finding
from support.checked_site import (
    build_site,
    check_site,
    commit_rejected_rows,
    drop_open_channel,
)
from support.damage import KINDS, Site

# `./run soak check` repeats each kind with new seeds.
ROUNDS = int(os.environ.get("SNOWMELT_TEST_DAMAGES", "1"))
SEED = int(os.environ.get("SNOWMELT_TEST_SEED", "1"))
# Kinds of damage that are found without reading data.
SHALLOW = frozenset(
    name
    for name in KINDS
    if name
    not in {
        *("chunk_md5_edited", "chunk_rows_edited", "statistics_edited", "blob_byte_flipped"),
        *("ledger_fingerprint_edited", "manifest_bounds_edited", "manifest_nulls_edited"),
        *("file_byte_flipped", "row_lost", "row_doubled", "value_changed", "value_made_null"),
        *("values_of_two_rows_exchanged", "null_made_empty", "blob_replaced_by_another"),
        "file_replaced_by_another",
    }
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An undamaged folder and a copy to restore it from (in place: metadata has absolute addresses)."""
    folder = tmp_path_factory.mktemp("checked") / "site"
    folder.mkdir()
    build_site(folder, SEED)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    return folder, copy


def restored(healthy: tuple[Path, Path]) -> Path:
    folder, copy = healthy
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    return folder


def describe(findings: list[Finding]) -> list[str]:
    return [f"{each.kind.name}: {each.detail}" for each in findings]


def test_a_healthy_folder_gives_no_finding(healthy: tuple[Path, Path]) -> None:
    assert describe(check_site(restored(healthy), deep=True)) == []


@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 1 + ROUNDS))
def test_other_healthy_folders_give_no_finding(seed: int, tmp_path: Path) -> None:
    build_site(tmp_path, seed)
    assert describe(check_site(tmp_path, deep=True)) == []


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_found_and_named(name: str, healthy: tuple[Path, Path]) -> None:
    for turn in range(ROUNDS):
        folder = restored(healthy)
        site = Site(folder, random.Random(f"{name} {SEED} {turn}"))
        expected = KINDS[name](site)
        site.database.close()
        findings = check_site(folder, deep=name not in SHALLOW)
        found = [each for each in findings if each.kind.name in expected.findings]
        assert found, (name, turn, describe(findings))
        texts = [each.detail + repr(each.subject) for each in found]
        assert any(expected.named in text for text in texts), (expected, texts)


def test_there_are_at_least_forty_kinds() -> None:
    assert len(KINDS) >= 40


@pytest.mark.parametrize("rejected", [1, 2])
def test_a_channel_that_is_created_again_may_begin_with_rejected_rows(
    rejected: int, tmp_path: Path
) -> None:
    house = Lakehouse(tmp_path)
    house.create()
    house.put(numbers(0, 5), channel="A", token="a1")
    commit_rejected_rows(house, "A", "a2")
    house.put(numbers(5, 5), channel="A", token="a3")
    drop_open_channel(house, "A")
    house.open_channel("A")
    for number in range(rejected):
        commit_rejected_rows(house, "A", f"b{number}")
    assert describe(check_site(tmp_path, deep=True)) == []
    house.put(numbers(10, 5), channel="A", token="b9")
    assert describe(check_site(tmp_path, deep=True)) == []
    house.close()
