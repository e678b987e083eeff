"""Steps of a run that use the row API with plain HTTP requests."""

from __future__ import annotations

import gzip
import json
import time
import uuid
from urllib.parse import quote as quote_url

import httpx

from support.system_model.model import Batch, Channel, Table, quote
from support.system_model.rows import Row, make_row, to_json_row
from support.system_model.run import RowApiHandle, Run
from support.system_model.sdk_operations import CHANNEL_NAMES

_RETRY_S = 120.0
_BUSY = frozenset({429, 503})


def send_request(
    run: Run, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send a request until the service responds, also while it is killed."""
    until = time.monotonic() + _RETRY_S
    while True:
        try:
            response = run.http.request(method, run.site.url + path, content=body, headers=headers)
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
        else:
            if response.status_code not in _BUSY or time.monotonic() > until:
                return response
        time.sleep(0.1)


def make_url(schema: str, pipe: str, name: str = "", *, data: bool = False) -> str:
    """Return the path of a pipe, or of one of its channels."""
    names = [quote_url(quote(each), safe="") for each in (schema, pipe)]
    path = f"databases/DEMO/schemas/{names[0]}/pipes/{names[1]}"
    channel = f"/channels/{quote_url(name)}" if name else ""
    return f"/v2/streaming/{'data/' if data else ''}{path}{channel}"


def _make_url(table: Table, name: str = "", *, data: bool = False) -> str:
    """Return the path of the default pipe of a table, or of one of its channels."""
    return make_url(table.schema, f"{table.name}-STREAMING", name, data=data)


def open_channel(run: Run, table: Table, name: str) -> None:
    """Open a channel in the row API, which fences its former owner."""
    channel = table.channels.get(name) or Channel(table, name)
    if channel.owner is not None:
        run.close_handle(channel.owner)
    url = f"{_make_url(table, name)}?requestId={uuid.uuid4()}"
    response = send_request(run, "PUT", url, b"{}")
    run.log("row API open", table.full_name, name, response.status_code, response.text[:300])
    if response.status_code != 200:
        run.differ(f"row API: open of channel {name!r} of {table.full_name}: {response.text}")
        return
    table.channels[name] = channel
    opened = response.json()
    token = opened["channel_status"].get("last_committed_offset_token")
    run.reconcile(channel, token, "row API open", final=True)
    handle = RowApiHandle(channel, opened["next_continuation_token"])
    channel.owner = handle
    run.row_api_handles.append(handle)


def open_any(run: Run) -> None:
    table = run.choose_table()
    open_channel(run, table, run.source.choice(CHANNEL_NAMES))


def append_any(run: Run) -> None:
    """Append rows to a channel, sometimes with a lost response, and sometimes twice."""
    source = run.source
    handles = run.list_row_api_handles()
    if not handles or source.random() < 0.1:
        open_any(run)
        return
    handle = source.choice(handles)
    channel = handle.channel
    table = channel.table
    if not handle.is_current:
        run.close_handle(handle)
        open_channel(run, table, channel.name)
        return
    rows = [make_row(table, source) for _ in range(source.choice([1, 2, 5, 30]))]
    lines = "\n".join(to_json_row(row, source, quoted=True) for row in rows)
    body = (lines + source.choice(["", "\n"])).encode()
    headers = {"content-type": "application/x-ndjson"}
    if source.random() < 0.2:
        body, headers["content-encoding"] = gzip.compress(body), "gzip"
    handle.last_token += 1
    url = (
        f"{_make_url(table, channel.name, data=True)}/rows?continuationToken={handle.continuation}"
        f"&endOffsetToken={handle.last_token}&requestId={uuid.uuid4()}"
    )
    if source.random() < 0.1:
        _lose_response(run, url, body, headers)
    response = send_request(run, "POST", url, body, headers)
    run.log(
        *("row API append", table.full_name, channel.name, "token", handle.last_token),
        *("keys", rows[0].key, rows[-1].key, response.status_code, response.text[:200]),
    )
    if response.status_code != 200:
        run.differ(f"row API: append to {table.full_name}: {response.text}")
        run.close_handle(handle)
        return
    if source.random() < 0.1:
        repeated = send_request(run, "POST", url, body, headers)
        if (repeated.status_code, repeated.text) != (200, response.text):
            run.differ(f"row API: {response.text} was repeated as {repeated.text}")
    accepted, rejected = divide_rows(run, table, rows)
    stored = [row.stored for row in accepted]
    channel.commit(Batch(handle.last_token, stored, rejected if table.has_error_table else []))
    handle.continuation = response.json()["next_continuation_token"]
    run.counts["rows of the row API"] += len(accepted)
    # After a rename, the status may be that of the channel that another table had under this name.
    if source.random() < 0.1 and handle.opened_at > table.renamed_at:
        _check_status(run, handle)


def _lose_response(run: Run, url: str, body: bytes, headers: dict[str, str]) -> None:
    timeout_s = run.source.choice([0.001, 0.02, 0.1])
    try:
        httpx.post(
            run.site.url + url, content=body, headers=headers, timeout=timeout_s, trust_env=False
        )
    except httpx.TransportError as error:
        run.log("response lost:", error)


def divide_rows(run: Run, table: Table, rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Return the rows that a request inserts, and the keys of those that it rejects."""
    if table.evolves:
        # Rows without a value drop NOT NULL, so that the service accepts them.
        run.adopt_dropped_required(table)
        accepted = [
            row
            for row in rows
            if row.is_valid or not (row.has_invalid_value or row.violates_required(table))
        ]
    else:
        accepted = [row for row in rows if row.is_valid]
    return accepted, [row.key for row in rows if row not in accepted]


def _check_status(run: Run, handle: RowApiHandle) -> None:
    channel = handle.channel
    body = json.dumps({"channel_names": [channel.name]}).encode()
    url = _make_url(channel.table) + ":bulk-channel-status"
    statuses = send_request(run, "POST", url, body).json()["channel_statuses"]
    token = statuses.get(channel.name, {}).get("last_committed_offset_token")
    if token != str(channel.token):
        run.differ(
            f"row API: channel {channel.name!r} of {channel.table.full_name} has token {token} "
            f"instead of {channel.token}"
        )


def append_stale(run: Run) -> None:
    """Send a continuation token that is not the last one. The service must reject it."""
    handles = [each for each in run.list_row_api_handles() if each.is_current]
    if not handles:
        return
    handle = run.source.choice(handles)
    channel = handle.channel
    client, row, *others = handle.continuation.split("_")
    if run.source.random() < 0.5:
        row = str(int(row) + run.source.choice([1, 2]))
    else:
        client = str(int(client) + 1)
    url = (
        f"{_make_url(channel.table, channel.name, data=True)}/rows"
        f"?continuationToken={'_'.join([client, row, *others])}&endOffsetToken=99999999"
        f"&requestId={uuid.uuid4()}"
    )
    body = to_json_row(make_row(channel.table, run.source), run.source, quoted=True).encode()
    response = send_request(run, "POST", url, body)
    if response.status_code != 400:
        run.differ(f"row API: a stale token returned {response.status_code}: {response.text}")


def append_elastic(run: Run) -> None:
    """Append rows without a channel, sometimes twice with the same request ID."""
    source = run.source
    table = run.choose_table()
    rows = [make_row(table, source) for _ in range(source.choice([1, 3]))]
    body = "\n".join(to_json_row(row, source, quoted=True) for row in rows).encode()
    url = f"{_make_url(table, 'ELASTIC', data=True)}/rows?requestId={uuid.uuid4()}"
    response = send_request(run, "POST", url, body)
    if source.random() < 0.3:
        response = send_request(run, "POST", url, body)
    run.log("row API elastic", table.full_name, rows[0].key, response.status_code)
    if response.status_code != 200:
        run.differ(f"row API: append to ELASTIC of {table.full_name}: {response.text}")
        return
    accepted, rejected = divide_rows(run, table, rows)
    table.add_rows([row.stored for row in accepted], rejected if table.has_error_table else [])


def drop_any(run: Run) -> None:
    handles = [each for each in run.list_row_api_handles() if each.is_current]
    if not handles:
        return
    handle = run.source.choice(handles)
    channel = handle.channel
    url = f"{_make_url(channel.table, channel.name)}?requestId={uuid.uuid4()}"
    response = send_request(run, "DELETE", url)
    run.log("row API drop", channel.table.full_name, channel.name, response.status_code)
    if response.status_code != 200:
        run.differ(f"row API: drop of channel {channel.name!r}: {response.text}")
        return
    run.close_handle(handle)
    channel.table.channels.pop(channel.name, None)
