from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.client.settings import ClientSettings
from snowmelt.client.stage import BlobStage, UploadGrant, open_stage
from snowmelt.errors import StageUnavailable
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire.streaming import StageLocation


def opened(folder: Path) -> BlobStage:
    grant = UploadGrant(StageLocation(locationType="LOCAL_FS", location=str(folder)), None)
    return open_stage(grant, lambda: grant, ClientSettings(), timeout_s=5)


def test_a_client_that_rested_until_its_blobs_were_cleaned_up_goes_on(tmp_path: Path) -> None:
    service = LocalStore(tmp_path / "stage")
    (service.root / "prefix").mkdir()
    stage = opened(service.root / "prefix")
    stage.put("2026/1/2/3/4/a.bdec", b"a")
    service.delete("prefix/2026/1/2/3/4/a.bdec")
    stage.put("2026/1/2/3/5/b.bdec", b"b")
    assert service.get("prefix/2026/1/2/3/5/b.bdec") == b"b"


def test_a_stage_that_is_not_on_this_machine_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StageUnavailable, match="is not a folder on this machine"):
        opened(tmp_path / "stage" / "prefix")
    assert list(tmp_path.iterdir()) == []
