from __future__ import annotations

import json

import pytest

from snowmelt import errors
from snowmelt.server import error_responses
from snowmelt.server.error_responses import error_response


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.TableNotFound(table="A.B.C"), 200, 4),
        (errors.RoleNotGranted(role="R", user="U"), 200, 37),
        (errors.ChannelFenced(channel="C"), 200, 20),
        (errors.RegistrationRefused("no blobs", 11), 200, 11),
        (errors.NameMissing("table", 17), 200, 17),
        (errors.RequestMalformed(reason="x"), 400, 1),
        (errors.AuthenticationFailed(reason="x"), 401, 1),
        (error_responses.RequestTooLarge(limit=1), 413, 1),
        (errors.CatalogBusy(seconds=60), 503, 10),
        (errors.StageUnavailable(reason="disk full"), 503, 1),
        (errors.UnknownOutcome(), 503, 10),
        (errors.ServiceBusy(reason="x"), 503, 10),
        (RuntimeError("secret detail"), 500, 1),
    ],
)
def test_every_error_has_one_answer(error: Exception, status: int, code: int) -> None:
    answer = error_response(error, path="/x", user="U")
    body = json.loads(answer.body)
    assert (answer.status, body["status_code"]) == (status, code)
    assert "secret" not in body["message"]
    # The official client closes itself when it finds its code 59 under this key.
    assert "code" not in body


def test_an_unavailable_service_says_when_to_come_back() -> None:
    answer = error_response(errors.CatalogUnavailable(reason="x"), path="/x", user=None)
    assert (b"retry-after", b"1") in answer.headers
