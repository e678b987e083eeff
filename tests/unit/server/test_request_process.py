"""Errors of a process are raised again in the service."""

from __future__ import annotations

import pytest

from snowmelt.buckets.errors import S3Error
from snowmelt.errors import SnowmeltError, StatementFailed, UserError
from snowmelt.select.errors import SelectError
from snowmelt.server.request_process import make_failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StatementFailed(reason="it was canceled"), StatementFailed),
        (SelectError("InvalidColumn", "unknown column nme"), UserError),
        (S3Error("NoSuchKey", "there is no such object"), UserError),
    ],
)
def test_an_error_keeps_its_kind_and_text(error: SnowmeltError, kind: type[SnowmeltError]) -> None:
    with pytest.raises(kind) as raised:
        make_failure(error, "a task").get_body()
    assert type(raised.value) is kind
    assert str(raised.value) == str(error)
    assert raised.value.status == error.status
