"""Files by HTTP and HTTPS, with range requests and version tags if the server supports them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import httpx

from snowmelt.backoff import growing_delays_s
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile, Portion

if TYPE_CHECKING:
    import ssl


# Limit per operation. There is no total limit, because files may be large.
_TIMEOUT = httpx.Timeout(60.0)
_MAX_ATTEMPTS = 4
_INITIAL_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.12, 1.08
# Without it, servers may compress the transfer, which breaks offsets.
_IDENTITY_HEADERS = {"Accept-Encoding": "identity"}

_CLOCK = SystemClock()


def find(path: str) -> Sequence[InputFile]:
    """Return the file with its version tag, and its size if the server supports ranges.

    Raises:
        PhaseFailed: If the server does not answer, or returns an error.
    """
    try:
        answer = httpx.head(
            path,
            headers=_IDENTITY_HEADERS,
            timeout=_TIMEOUT,
            follow_redirects=True,
            verify=_make_tls_context(),
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PhaseFailed(reason=f"{path}: {error}") from error
    if answer.status_code in {404, 410}:
        return ()
    # The server does not support HEAD: reading finds out if the file exists.
    if answer.status_code in {405, 501}:
        return (InputFile(path),)
    if answer.is_error:
        raise PhaseFailed(reason=f"{path}: the server returned {answer.status_code}")
    length = answer.headers.get("content-length", "")
    ranges = answer.headers.get("accept-ranges", "").lower() == "bytes"
    size = int(length) if ranges and length.isdecimal() else None
    return (InputFile(path, size, _make_version_tag(answer)),)


def read(portion: Portion, clock: Clock = _CLOCK) -> Iterator[bytes]:
    """Yield the bytes from the portion's offset. Resume after connection errors.

    Raises:
        PhaseFailed: If the file cannot be read, or has changed since it was listed.
    """
    offset, failed = portion.offset, 0
    while True:
        try:
            for piece in _stream_response(portion.file, offset):
                offset, failed = offset + len(piece), 0
                yield piece
        except httpx.HTTPError as error:
            failed += 1
            if failed == _MAX_ATTEMPTS or portion.file.size is None or portion.file.tag is None:
                reason = f"{portion.file.path}: {str(error) or type(error).__name__}"
                raise PhaseFailed(reason=reason, offset=offset) from error
            delays_s = growing_delays_s(
                _INITIAL_RETRY_DELAY_S, _MAX_RETRY_DELAY_S, factor=3.0, jitter=0.0
            )
            clock.sleep(next(islice(delays_s, failed - 1, None)))
        else:
            break
    if portion.file.size is not None and offset < portion.file.size:
        reason = f"{portion.file.path} ends at byte {offset} of {portion.file.size}"
        raise PhaseFailed(reason=reason, offset=offset)


def _stream_response(file: InputFile, offset: int) -> Iterator[bytes]:
    if file.size is not None and offset >= file.size:
        return
    headers = dict(_IDENTITY_HEADERS)
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with httpx.stream(
        "GET",
        file.path,
        headers=headers,
        timeout=_TIMEOUT,
        follow_redirects=True,
        verify=_make_tls_context(),
    ) as answer:
        if file.tag is not None and answer.is_success and _make_version_tag(answer) != file.tag:
            raise PhaseFailed(reason=f"{file.path} has changed since the load began")
        if answer.status_code != (206 if offset else 200):
            reason = f"{file.path}: the server returned {answer.status_code}"
            raise PhaseFailed(reason=reason, offset=offset)
        yield from answer.iter_raw()


@functools.cache
def _make_tls_context() -> ssl.SSLContext:
    # Cached, because reading the CA certificates takes as long as loading a small file.
    return httpx.create_ssl_context()


def _make_version_tag(response: httpx.Response) -> str | None:
    mark = response.headers.get("etag") or response.headers.get("last-modified")
    return str(mark) if mark else None
