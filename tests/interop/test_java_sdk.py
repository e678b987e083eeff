"""The official Java client, as it is on Maven, against our service: its channels' whole life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.java import JavaError, JavaSdk
from fixtures.service import KeyPair, ServiceProcess
from support.java_client import Loading, rows
from support.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def loading(tmp_path: Path, sdk: JavaSdk, key_pair: KeyPair) -> Iterator[Loading]:
    """A service of the test's own; the old client writes to a folder, the new to the S3 endpoint."""
    service = ServiceProcess(tmp_path / "data", free_port())
    if sdk.version.startswith("4"):
        s3_port = free_port()
        service.environment["SNOWMELT_S3_PORT"] = str(s3_port)
        service.environment["SNOWMELT_STAGE_ENDPOINT"] = f"http://127.0.0.1:{s3_port}"
    service.start()
    with sdk.driver(tmp_path) as driver:
        yield Loading(service, driver, key_pair)
    service.kill()


def test_a_channel_lives_through_a_kill_a_fence_and_a_drop(loading: Loading) -> None:
    say = loading.driver.say
    loading.connect("one")
    assert loading.open("one", "a") == f"{loading.database}.PUBLIC.T.C".upper()
    assert say("token", channel="a") is None
    assert loading.insert("a", rows(0, 500), "500") == []
    loading.wait("a", "500")
    assert loading.ids() == list(range(500))

    loading.service.kill()
    assert loading.insert("a", rows(500, 900), "900", start="501") == []
    loading.service.start()
    loading.wait("a", "900")
    assert loading.ids() == list(range(900))

    loading.connect("two")
    loading.open("two", "b")
    assert say("token", channel="b") == "900"
    with pytest.raises(JavaError) as fenced:
        say("token", channel="a")
    assert fenced.value.code == "0028"
    assert loading.until_invalid("a") == "0013"
    assert loading.insert("b", rows(900, 950), "950") == []
    say("close", channel="b")
    assert loading.ids() == list(range(950))

    loading.open("one", "c", offset_token="1000")
    assert say("token", channel="c") == "1000"
    assert loading.insert("c", rows(950, 960), "1010") == []
    say("close", channel="c", drop=True)
    loading.open("one", "d")
    assert say("token", channel="d") is None
    say("drop", client="one", name="c", **loading.names)
    with pytest.raises(JavaError) as dropped:
        say("token", channel="d")
    assert dropped.value.code == "0028"

    mixed = [*rows(960, 962), {"id": "x"}, *rows(962, 964), {"id": "y"}]
    loading.open("one", "abort", name="abort", on_error="ABORT")
    with pytest.raises(JavaError) as refused:
        loading.insert("abort", mixed, "1")
    assert refused.value.code == "0030"
    loading.open("one", "skip", name="skip", on_error="SKIP_BATCH")
    errors = loading.insert("skip", mixed, "1")
    assert [(error["row"], error["code"]) for error in errors] == [(2, "0030"), (5, "0030")]
    for name, first in (("abort", 960), ("skip", 965)):
        assert loading.insert(name, rows(first, first + 5), "2") == []
        loading.wait(name, "2")
    assert loading.ids() == list(range(970))

    # The client cannot fill defaults: rows that lack one are never stored as NULL.
    loading.open("one", "default", name="default")
    loading.service.sql(
        f"ALTER TABLE {loading.database}.public.t ALTER COLUMN name SET DEFAULT 'none'"
    )
    assert loading.until_invalid("default") == "0013"
    with pytest.raises(JavaError, match="has the default 'none'"):
        loading.open("one", "again", name="default")
    loading.service.sql(f"ALTER TABLE {loading.database}.public.t ALTER COLUMN name DROP DEFAULT")
    loading.open("one", "last", name="default")
    assert loading.insert("last", rows(970, 980), "3") == []
    loading.wait("last", "3")
    say("close client", client="one")
    say("close client", client="two")
    assert loading.ids() == list(range(980))
