"""Schema registry with Confluent's REST API: subjects, versions, IDs, references.

No package registry provides one that runs without Kafka and Java. The official client registers and
reads schemas here, which tests the format of the responses.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Registry:
    """Server and its schemas.

    If `is_down` is True, it responds with status 503. If `is_answering` is False, it accepts
    requests and does not respond.
    """

    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    is_down: bool = False
    is_answering: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        registry = self
        self.is_answering.set()

        class Handler(_Handler):
            of = registry

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.is_answering.set()
        self.server.shutdown()
        self.server.server_close()

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Return the ID of a schema. Equal schemas have one ID."""
        known = {key: value for key, value in schema.items() if value} | {
            "schemaType": schema.get("schemaType", "AVRO")
        }
        known = {key: known[key] for key in ("schema", "schemaType", "references") if key in known}
        if known not in self.schemas:
            self.schemas.append(known)
        schema_id = self.schemas.index(known) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def version(self, subject: str, schema_id: int) -> dict[str, Any]:
        return {
            "subject": subject,
            "id": schema_id,
            "version": self.subjects[subject].index(schema_id) + 1,
            **self.schemas[schema_id - 1],
        }


class _Handler(BaseHTTPRequestHandler):
    of: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry = self.of
        registry.requests.append(self.path)
        registry.is_answering.wait()
        parts = [unquote(each) for each in urlsplit(self.path).path.strip("/").split("/")]
        if registry.is_down:
            return self._send(503, {"error_code": 50301, "message": "down"})
        match parts:
            case ["schemas", "ids", text]:
                number = int(text)
                if not 0 < number <= len(registry.schemas):
                    return self._send(404, {"error_code": 40403, "message": "Schema not found"})
                return self._send(200, registry.schemas[number - 1])
            case ["subjects", subject, "versions", text]:
                versions = registry.subjects.get(subject)
                if not versions:
                    return self._send(404, {"error_code": 40401, "message": "Subject not found"})
                schema_id = versions[-1 if text == "latest" else int(text) - 1]
                return self._send(200, registry.version(subject, schema_id))
        return self._send(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = [unquote(each) for each in urlsplit(self.path).path.strip("/").split("/")]
        subject = parts[1]
        schema_id = self.of.register(subject, body)
        self._send(200, self.of.version(subject, schema_id))

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Write no log."""
