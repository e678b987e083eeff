"""Service for the official SDK that only responds, to measure the maximum speed of a client.

It reads each body, counts its bytes and reports success. Script arguments: port, certificate, key.
`GET /counts` returns the counts.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import sys
import time
import uuid

_YEARS_MS = 10 * 365 * 86_400_000


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class NothingServer:
    """State of the service: its address, and counts of requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tokens = itertools.count(1)
        self._bytes = 0
        self._requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to the requests of one connection."""
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers = {}
                while (field := await reader.readline()) not in {b"\r\n", b""}:
                    name, _, value = field.decode().partition(":")
                    headers[name.lower()] = value.strip()
                length = int(headers.get("content-length", 0))
                await self._skip(reader, length)
                path = target.partition("?")[0]
                if path.endswith(("/rows",)) or path.startswith("/nothing/"):
                    self._bytes += length
                    self._requests += 1
                body, more = self._answer(method, path)
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{more}\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _skip(self, reader: asyncio.StreamReader, length: int) -> None:
        while length:
            length -= len(await reader.readexactly(min(length, 1 << 18)))

    def _answer(self, method: str, path: str) -> tuple[bytes, str]:
        if method == "PUT" and path.startswith("/nothing/"):
            return b"", f'etag: "{uuid.uuid4().hex}"\r\n'
        if path.endswith("/hostname"):
            return b"127.0.0.1", "content-type: text/plain\r\n"
        if path == "/oauth/token":
            claims = {"exp": int(time.time()) + 86_400, "jti": str(next(self._tokens))}
            return f"{_part({'alg': 'HS256'})}.{_part(claims)}.{_part(1)}".encode(), ""
        return json.dumps(self._said(path)).encode(), "content-type: application/json\r\n"

    def _said(self, path: str) -> object:
        if path == "/counts":
            return {"bytes": self._bytes, "requests": self._requests}
        if path.endswith("pipe-info"):
            return self._pipe()
        if path.endswith("bulk-channel-status"):
            return {"channel_statuses": {}}
        answer: dict[str, object] = {"next_continuation_token": f"0_{next(self._tokens)}"}
        if path.endswith(("/rows", "/filebuffer")):
            return answer
        names = dict.fromkeys(("database_name", "schema_name", "pipe_name", "channel_name"), "x")
        counts = dict.fromkeys(
            ("created_on_ms", "rows_inserted", "rows_parsed", "rows_error_count"), 0
        )
        return answer | {"channel_status": {**names, **counts, "channel_status_code": "SUCCESS"}}

    def _pipe(self) -> object:
        place = {
            "expiry_time_ms": int(time.time() * 1000) + _YEARS_MS,
            "location_type": "S3",
            "use_s3_regional_url": False,
            "location": f"nothing/{next(self._tokens)}/",
            "region": "us-east-1",
            "creds": {"AWS_KEY_ID": "a", "AWS_SECRET_KEY": "b", "AWS_TOKEN": "c"},
            "storage_endpoint": f"127.0.0.1:{self._port}",
        }
        key = {
            "pipe_key": base64.b64encode(bytes(32)).decode(),
            "pipe_key_id": 1,
            "diversifier": "d",
        }
        return {
            "rowset_stage_location": place,
            "durable_stage_location": place,
            "pipe_encryption_info": key,
        }


async def _main(port: int, certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    service = NothingServer(port)
    listening = await asyncio.start_server(
        service.serve, "127.0.0.1", port, ssl=context, limit=1 << 20
    )
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
