"""Files of web servers, whether these know ranges and marks or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.sources.files import FileGlobSource, list_files

DATA = bytes(range(256)) * 4_000


class Handler(BaseHTTPRequestHandler):
    """Serves DATA: `/plain` as simple servers do, `/breaks` with every answer cut off."""

    protocol_version = "HTTP/1.1"
    etag = '"one"'
    breaks = 0

    def do_HEAD(self) -> None:
        if self.path == "/nohead":
            self.reply(405, b"")
        elif self.path == "/missing":
            self.reply(404, b"")
        elif self.path == "/forbidden":
            self.reply(403, b"")
        else:
            self.reply(200, DATA)

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        if wanted and self.path != "/plain":
            self.reply(206, DATA[int(wanted.removeprefix("bytes=").removesuffix("-")) :])
        else:
            self.reply(200, DATA)

    def reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if self.path != "/plain":
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", type(self).etag)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.path == "/breaks" and len(data) > 300_000:
            self.wfile.write(data[:300_000])
            type(self).breaks += 1
            self.close_connection = True
        elif self.path == "/dead":
            self.close_connection = True
        else:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    kind: type[Handler]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    kind = type("Own", (Handler,), {})
    with Server(("127.0.0.1", 0), kind) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        made.kind = kind
        yield made
        made.shutdown()
        thread.join()


def joined(portion: Portion) -> bytes:
    return b"".join(FileGlobSource().read(portion))


def test_a_file_is_listed_with_size_and_mark_and_read_from_anywhere(
    server: Server,
) -> None:
    (file,) = list_files(f"{server.url}/data.csv")
    assert file == InputFile(f"{server.url}/data.csv", len(DATA), '"one"')
    assert joined(Portion(file)) == DATA
    assert joined(Portion(file, 1_000_000, 10)) == DATA[1_000_000:]
    assert joined(Portion(file, len(DATA), 0)) == b""


@pytest.mark.parametrize("path", ["plain", "nohead"])
def test_servers_that_know_little_give_whole_files(server: Server, path: str) -> None:
    (file,) = list_files(f"{server.url}/{path}")
    assert file.size is None
    assert joined(Portion(file)) == DATA


@pytest.mark.slow
def test_a_broken_answer_is_taken_up_where_it_ended(server: Server) -> None:
    (file,) = list_files(f"{server.url}/breaks")
    assert joined(Portion(file)) == DATA
    assert server.kind.breaks == 3


@pytest.mark.slow
def test_a_server_that_gives_nothing_is_given_up(server: Server) -> None:
    (file,) = list_files(f"{server.url}/dead")
    with pytest.raises(PhaseFailed, match="/dead: ") as failure:
        joined(Portion(file))
    assert failure.value.fields["offset"] == 0


def test_another_mark_is_a_changed_file(server: Server) -> None:
    (file,) = list_files(f"{server.url}/data.csv")
    server.kind.etag = '"two"'
    with pytest.raises(PhaseFailed, match=r"data.csv has changed"):
        joined(Portion(file))


def test_what_is_not_there_is_an_error(server: Server) -> None:
    with pytest.raises(PhaseFailed, match="no file matches"):
        list_files(f"{server.url}/missing")
    with pytest.raises(PhaseFailed, match="returned 403"):
        list_files(f"{server.url}/forbidden")
    with pytest.raises(PhaseFailed, match=r"http://127\.0\.0\.1:1/x"):
        list_files("http://127.0.0.1:1/x")
