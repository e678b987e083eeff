"""Records requests of engines to the Iceberg REST catalog, for `tests/flow/test_iceberg_replay.py`.

Run as `uv run python -m support.record_iceberg_requests` in `tests/`. Each engine reads a table
through a proxy, which writes its requests to `tests/fixtures/iceberg_requests.json`, without tokens.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from engines.test_more_iceberg_engines import ICEBERG_VERSIONS, OTHERS, SPARK, find_jars
from fixtures.engines import REQUIREMENTS, Lake, make_environment, start_engine
from fixtures.s3 import s3_process
from fixtures.service import KeyPair

RECORDED = Path(__file__).parents[1] / "fixtures" / "iceberg_requests.json"
_HEADERS = (
    "accept",
    "content-type",
    "user-agent",
    "x-iceberg-access-delegation",
    "x-client-version",
)
_TOKEN = "TOKEN"


def make_proxy(address: str, requests: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    """Return a handler that forwards requests to a service and records them."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            given = {name.lower(): value for name, value in self.headers.items()}
            given.pop("accept-encoding", None)
            answer = httpx.request(
                self.command, f"{address}{self.path}", content=body, headers=given, timeout=60
            )
            kept = {name: given[name] for name in _HEADERS if name in given}
            if "authorization" in given:
                kept["authorization"] = f"Bearer {_TOKEN}"
            requests.append(
                {
                    "method": self.command,
                    "path": self.path,
                    "headers": kept,
                    "body": body.decode(),
                    "status": answer.status_code,
                }
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in {"content-length", "connection", "date", "server"}:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815  names of the library

        def log_message(self, *_arguments: Any) -> None:
            """Write no log."""

    return Proxy


def list_engines(names: Iterable[str], s3: str) -> Iterable[tuple[str, Path, tuple[str, ...]]]:
    for name in names:
        kind, _, version = name.partition("-")
        if kind == "spark":
            yield name, make_environment("spark-4.0", SPARK), (find_jars(version),)
        elif kind in {"clickhouse", "daft"}:
            extra = (f"{s3}/snowmelt-warehouse",) if kind == "clickhouse" else ()
            yield name, make_environment("more-engines", OTHERS), extra
        else:
            yield name, make_environment("engines", REQUIREMENTS), ()


def record(names: Iterable[str]) -> None:
    found = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(s3_process(Path(folder)), KeyPair.generate())
        try:
            # The first load waits for the publisher to start.
            while lake.get("DEMO/namespaces/PUBLIC/tables/T").status_code != 200:
                pass
            for name, python, extra in list_engines(names, lake.process.url):
                requests: list[dict[str, Any]] = []
                proxy = ThreadingHTTPServer(
                    ("127.0.0.1", 0), make_proxy(lake.service.url, requests)
                )
                Thread(target=proxy.serve_forever, daemon=True).start()
                uri = f"http://127.0.0.1:{proxy.server_port}/iceberg"
                kind = name.partition("-")[0]
                engine = start_engine(python, Path(folder), kind, uri, "DEMO", lake.token, *extra)
                engine.read("PUBLIC.T", "ID")
                engine.close()
                proxy.shutdown()
                key = lake.key
                text = json.dumps(requests).replace(key.access_key_id, "KEY")
                found[name] = json.loads(text.replace(key.secret, "SECRET"))
                RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        finally:
            lake.service.kill()


if __name__ == "__main__":
    names = ("pyiceberg", "duckdb", "polars", "clickhouse", "daft")
    record(sys.argv[1:] or (*names, *(f"spark-{version}" for version in ICEBERG_VERSIONS)))
