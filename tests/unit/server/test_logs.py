from __future__ import annotations

import json
import logging

import pytest

from snowmelt.errors import SnowmeltError
from snowmelt.server.logs import CONTEXT_FIELDS, JsonLogFormatter, TextLogFormatter, redact_secrets

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJBLkIifQ.c2lnbmF0dXJl"


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("snowmelt.server")
    return logger.makeRecord(logger.name, logging.INFO, "f", 1, message, values, None, extra=extra)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"refused {TOKEN} of u", TOKEN),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("postgresql+psycopg://snowmelt:hunter2@db/snowmelt", "hunter2"),
        ("GET /b/k?X-Amz-Signature=0a1b&X-Amz-Security-Token=zz/9 200", "0a1b"),
        ("GET /b/k?X-Amz-Signature=0a1b&X-Amz-Security-Token=zz/9 200", "zz/9"),
        ("secret_access_key=wJalr/XUtn", "wJalr"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "MIIE"),
    ],
)
def test_secrets_are_blacked_out_wherever_they_come_from(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact_secrets(text)
    assert secret not in TextLogFormatter().format(record("%s", text))
    assert secret not in JsonLogFormatter().format(record("%s", text, path=text))


def test_no_client_writes_a_line_of_its_own() -> None:
    forged = "2026-11-24 12:00:00,000 INFO snowmelt.audit: console: user ROOT logged in"
    name = f'"x\n{forged}\r\x1b[2K\u2028{forged}"'
    entry = record("table %s does not exist", name)
    try:
        raise ValueError(name)
    except ValueError as error:
        entry.exc_info = (type(error), error, error.__traceback__)
    lines = TextLogFormatter().format(entry).splitlines()
    assert [line for line in lines if line.startswith("2026-11-24 12:00")] == []
    assert "\\x1b[2K" in lines[0]
    assert all(line.startswith("  ") for line in lines[1:])


def test_what_is_no_secret_stays() -> None:
    text = "table DEMO.PUBLIC.T at http://127.0.0.1:8080/v1: user LOADER, s3://bucket/a@b"
    assert redact_secrets(text) == text


def test_a_json_line_says_what_is_known() -> None:
    line = json.loads(
        JsonLogFormatter().format(record("a\n%s", "b", user="U", channel="C", status=503))
    )
    assert line["message"] == "a\nb"
    assert (line["level"], line["logger"]) == ("info", "snowmelt.server")
    assert (line["user"], line["channel"], line["status"]) == ("U", "C", 503)
    assert line["time"].endswith("Z")
    assert set(line) - set(CONTEXT_FIELDS) == {"time", "level", "logger", "message"}


def test_a_traceback_is_part_of_its_line() -> None:
    entry = record("failed")
    try:
        raise SnowmeltError(f"with {TOKEN}")
    except SnowmeltError as error:
        entry.exc_info = (type(error), error, error.__traceback__)
    text = JsonLogFormatter().format(entry)
    assert "\n" not in text
    assert TOKEN not in text
    assert "SnowmeltError" in json.loads(text)["traceback"]
