"""What every test of functions has."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture(autouse=True)
def _own_shared_files(tmp_path_factory, monkeypatch):
    """Keep the limits of an origin apart from those that another test left.

    They lie in files by origin, and ports come round again: a service on the port of one that was
    too busy would be held back, by a clock that nobody advances any more for ever.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("shared")))
    # Read again from the environment by whoever asks next.
    monkeypatch.setattr(tempfile, "tempdir", None)
