"""Log formats of the service: text or JSON lines, with secrets redacted."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from typing import Any

from snowmelt.config import Settings

# Fields about the request that a log line may have (`extra` of the logging call).
CONTEXT_FIELDS = ("request_id", "user", "table", "channel", "path", "status", "error")

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Patterns of secrets. Messages of Snowmelt contain none, but quoted errors of databases, stores and
# libraries might.
_SECRET_PATTERNS = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL
        ),
        "[private key]",
    ),
    (re.compile(r"\beyJ[\w-]*\.[\w-]+\.[\w-]*"), "[token]"),
    (re.compile(r"(?i)\b(bearer|snowflake token=)\s+[^\s\"',]+"), r"\1 [token]"),
    (re.compile(r"(://[^/\s:@]*):[^/\s@]+@"), r"\1:[password]@"),
    (
        re.compile(
            r"(?i)\b(x-amz-(?:signature|security-token)|signature|password|secret[\w-]*)([=:]\s*)[^\s&\"',]+"
        ),
        r"\1\2[hidden]",
    ),
)


def redact_secrets(text: str) -> str:
    """Replace everything that looks like a token, key, signature or password."""
    for pattern, instead in _SECRET_PATTERNS:
        text = pattern.sub(instead, text)
    return text


class TextLogFormatter(logging.Formatter):
    """Formats log events as lines of text.

    Names of objects in a message may contain line breaks. They are escaped, and lines of tracebacks
    are indented, so that no client can forge a line.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as a line, followed by its traceback."""
        return redact_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - name of the base class
        """Return the line of an event, with control characters escaped."""
        return _escape_controls(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - name of the base class
        """Return a traceback whose lines are indented."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {_escape_controls(line)}" for line in lines)


def _escape_controls(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class JsonLogFormatter(logging.Formatter):
    """Formats log events as JSON lines: time, level, logger, message, and fields of the request."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as a JSON object."""
        at = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_secrets(record.getMessage()),
        }
        for name in CONTEXT_FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                line[name] = value if isinstance(value, int) else redact_secrets(str(value))
        if record.exc_info:
            line["traceback"] = redact_secrets(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: Settings) -> None:
    """Make this process log to standard error, as the settings specify.

    The level applies to Snowmelt's events only. Libraries log no debug messages, because some would
    log request headers with secrets.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLogFormatter() if settings.log_format == "json" else TextLogFormatter()
    )
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler])
    logging.getLogger("snowmelt").setLevel(level)
    for chatty in ("alembic", "uvicorn", "numba", "httpx", "botocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
