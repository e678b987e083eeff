"""Client of a schema registry with Confluent's REST API, with a cache of schemas."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from snowmelt.backoff import growing_delays_s
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import SchemaRegistryUnavailable
from snowmelt.loaders.kafka.message_rows import MessageInvalid
from snowmelt.loaders.kafka.stream_options import RegistryOptions

_REQUEST_TIMEOUT_S = 10.0
# Maximum wait of the connector's thread for a response. Later attempts of the partition check for
# the response again.
_RESPONSE_WAIT_S = 0.5
_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0
# Messages with the same missing ID cause at most one request within this time.
_MISSING_ID_CACHE_S = 10.0
# A producer of invalid messages must not fill the memory with missing IDs.
_MAX_MISSING_IDS = 10_000
_MAGIC = 0
_HEADER_BYTES = 5
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class SchemaReference(NamedTuple):
    """Reference from a schema to another one: its name there, and the subject and version."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """Type, text and references of a schema. The text of a serialized schema is base64."""

    kind: str
    text: str
    references: tuple[SchemaReference, ...]


class _RegistryFailure(Exception):
    """No URL of the registry returned a schema. The text is the reason."""


class SchemaRegistry:
    """Client of a registry, for one thread. URLs separated by commas are tried in order.

    Requests run in separate threads, so that an unresponsive registry does not block other topics.
    After a failure, new requests are sent after a growing delay (0.5 s to 30 s).
    """

    def __init__(self, options: RegistryOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._urls = [url.strip().rstrip("/") for url in options.url.split(",") if url.strip()]
        self._shown_url = re.sub(r"//[^/@,]*@", "//", ", ".join(self._urls))
        self._clock = clock or SystemClock()
        self._schemas: dict[str, RegisteredSchema] = {}
        self._missing: dict[str, float] = {}
        self._requests: dict[str, Future[RegisteredSchema | None]] = {}
        self._failure = ""
        self._retry_at = 0.0
        self._delays_s: Iterator[float] = growing_delays_s(_INITIAL_BACKOFF_S, _MAX_BACKOFF_S)

    def fetch_schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        """Return the schema of an ID. `serialized` is for Protobuf: its descriptor in base64.

        Raises:
            MessageInvalid: If the registry has no schema with this ID.
            SchemaRegistryUnavailable: If the registry does not respond, or its response is invalid.
        """
        return self._get(f"/schemas/ids/{schema_id}", serialized=serialized)

    def fetch_reference(
        self, reference: SchemaReference, *, serialized: bool = False
    ) -> RegisteredSchema:
        """Return a schema that another one uses. Raise the errors of `fetch_schema`."""
        subject = reference.subject.replace("%", "%25").replace("/", "%2F")
        path = f"/subjects/{subject}/versions/{reference.version}"
        return self._get(path, serialized=serialized)

    def _get(self, path: str, *, serialized: bool) -> RegisteredSchema:
        if serialized:
            path += "?format=serialized"
        found = self._schemas.get(path)
        if found is not None:
            return found
        now = self._clock.monotonic()
        if now - self._missing.get(path, -_MISSING_ID_CACHE_S) < _MISSING_ID_CACHE_S:
            raise MessageInvalid(f"the schema registry has no {path}")
        found = self._await_response(path, now)
        self._retry_at = 0.0
        self._delays_s = growing_delays_s(_INITIAL_BACKOFF_S, _MAX_BACKOFF_S)
        if found is None:
            if len(self._missing) >= _MAX_MISSING_IDS:
                self._missing.clear()
            self._missing[path] = now
            raise MessageInvalid(f"the schema registry has no {path}")
        self._schemas[path] = found
        return found

    def _await_response(self, path: str, now: float) -> RegisteredSchema | None:
        request, wait_s = self._requests.get(path), 0.0
        if request is None:
            if now < self._retry_at:
                raise self._make_error(self._failure)
            request, wait_s = self._start_request(path), _RESPONSE_WAIT_S
        try:
            found = request.result(wait_s)
        except TimeoutError:
            raise self._make_error(f"no response for {path} yet") from None
        except _RegistryFailure as error:
            self._failure = str(error)
            self._retry_at = self._clock.monotonic() + next(self._delays_s)
            del self._requests[path]
            raise self._make_error(self._failure) from error
        del self._requests[path]
        return found

    def _start_request(self, path: str) -> Future[RegisteredSchema | None]:
        request = self._requests[path] = Future()

        def send() -> None:
            try:
                request.set_result(self._send(path))
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                request.set_exception(error)

        threading.Thread(target=send, name="schema-registry", daemon=True).start()
        return request

    def _send(self, path: str) -> RegisteredSchema | None:
        """Return the schema at a path; None if the registry has none."""
        user, _, password = self._options.user.partition(":")
        reasons = []
        with httpx.Client(
            timeout=_REQUEST_TIMEOUT_S,
            auth=(user, password) if user else None,
            verify=self._options.ca_file or True,
            headers={"Accept": _ACCEPT},
        ) as client:
            for url in self._urls:
                try:
                    response = client.get(url + path)
                    body = response.json()
                    if response.status_code == httpx.codes.NOT_FOUND and "error_code" in body:
                        return None
                    if response.is_success:
                        return _parse_schema(body, is_serialized="?" in path)
                    reasons.append(f"status {response.status_code} for {path}")
                except httpx.HTTPError as error:
                    reasons.append(str(error) or type(error).__name__)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    reasons.append(f"unexpected response for {path}: {error}")
        raise _RegistryFailure("; ".join(reasons))

    def _make_error(self, reason: str) -> SchemaRegistryUnavailable:
        return SchemaRegistryUnavailable(url=self._shown_url, reason=reason)


def split_wire_format(data: bytes) -> tuple[int, bytes]:
    """Return schema ID and content of a message in Confluent's wire format.

    Raises:
        MessageInvalid: If the message does not begin with a zero byte and an ID.
    """
    if len(data) < _HEADER_BYTES or data[0] != _MAGIC:
        reason = "expected a zero byte and a four-byte schema ID at its start"
        raise MessageInvalid(f"{reason}, got {data[:_HEADER_BYTES].hex() or 'nothing'}")
    return int.from_bytes(data[1:_HEADER_BYTES], "big"), data[_HEADER_BYTES:]


def _parse_schema(body: dict[str, Any], *, is_serialized: bool) -> RegisteredSchema:
    references = tuple(
        SchemaReference(each["name"], each["subject"], int(each["version"]))
        for each in body.get("references") or ()
    )
    schema = RegisteredSchema(body.get("schemaType") or "AVRO", str(body["schema"]), references)
    if is_serialized and schema.kind == "PROTOBUF":
        try:
            base64.b64decode(schema.text, validate=True)
        except binascii.Error:
            reason = "expected a descriptor in base64 (`format=serialized`), got another text"
            raise ValueError(reason) from None
    return schema
