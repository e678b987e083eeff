"""Takes screenshots of the console's pages in both themes and two widths, for the documentation.

    python tests/support/console_screenshots.py [FOLDER [PAGE …]]

Writes PNG files of at most 60 kB each, of all pages, or only of the named ones.
"""

from __future__ import annotations

import datetime as dt
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import sqlalchemy as sa
from playwright.sync_api import sync_playwright

from fixtures.browser import access_key, migrate, open_browser
from snowmelt.buckets.bucket import UploadCompletion
from snowmelt.buckets.bucket_registry import BucketRegistry
from snowmelt.catalog import model
from snowmelt.storage.local_store import LocalStore
from snowmelt.testing import LocalService
from support.browser import find_or_install_browser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images" / "console"
MAX_BYTES = 60_000
PAGES = {
    "overview": "/",
    "channels": "/channels",
    "channel": "/channels/DEMO/PUBLIC/FLIGHTS/EWR",
    "tables": "/tables",
    "table": "/tables/DEMO/PUBLIC/FLIGHTS",
    "rejected": "/tables/DEMO/PUBLIC/FLIGHTS/rejected",
    "loads": "/loads",
    "migrations": "/migrations",
    "query": "/query?sql=SELECT+origin,+count(*)+FROM+demo.public.flights+GROUP+BY+origin",
    "select": "/select?bucket=data&key=people.csv",
    "pipes": "/pipes",
    "trace": "/tables/DEMO/PUBLIC/FLIGHTS/trace?channel=EWR",
    "checks": "/checks",
    "functions": "/functions",
    "kafka": "/kafka",
    "sites": "/sites",
    "login": "/login",
}


def fill(service: LocalService) -> None:
    """Stream rows, reject one of them, migrate a part, and put an object."""
    table = service.create_table(
        "demo.public.flights",
        "origin VARCHAR(3) NOT NULL, flight INT, delay INT, at TIMESTAMP_NTZ",
        "ERROR_TABLE = demo.public.rejected",
    )
    service.create_table("demo.public.weather", "station VARCHAR, celsius FLOAT")
    with service.client() as client:
        for number in range(4):
            for origin in ("EWR", "JFK", "LGA"):
                channel = client.open_channel(origin, table=table, on_error="continue")
                rows = [
                    {"origin": origin, "flight": each, "delay": each % 50}
                    for each in range(50 * (number + 1))
                ]
                bad = {"origin": "LGA", "flight": "unknown", "delay": 1}
                token = str((number + 1) * 100)
                channel.insert_rows([*rows, bad] if number == 2 else rows, offset_token=token)
                channel.wait_for_commit(token, timeout=dt.timedelta(seconds=200))
            if number in {1, 2}:
                migrate(service, table)
        for name, end in (("clicks:P0", "1200"), ("clicks:P1", "1180"), ("orders:P0", "310")):
            for suffix, token in (
                ("", "1179" if name == "clicks:P0" else str(int(end) - 1)),
                (":end", end),
            ):
                channel = client.open_channel(f'"{name}{suffix}"', table="demo.public.weather")
                channel.advance(token)
                channel.wait_for_commit(token, timeout=dt.timedelta(seconds=200))
    add_secondary(service)
    service.sql("CREATE BUCKET data")
    files = LocalStore(service.embedded.settings.objects_dir)
    registry = BucketRegistry(service.embedded.service.database, files, service.clock)
    upload = registry.access_bucket("EMBEDDED", "data").bucket.start_upload("people.csv", {})
    upload.write(b"name,age\n" + b"".join(b"person %d,%d\n" % (n, n % 80) for n in range(200)))
    upload.finish(UploadCompletion())


def add_secondary(service: LocalService) -> None:
    """Create a failover group with a secondary that is current."""
    service.sql("CREATE FAILOVER GROUP sites ALLOWED_ACCOUNTS = site2 SITE = site1")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with service.embedded.service.database.writing() as connection:
        slot = {"site": "SITE2", "site_number": 2, "url": "https://two.example:8080", "point": 0}
        connection.execute(sa.insert(model.replica_slots).values(**slot, requested_at=later))


def shrink(png: bytes) -> bytes:
    """Convert an RGB picture to a palette, which takes a third of the bytes."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) in {(8, 2), (8, 6)}, "the browser writes RGB or RGBA"
    channels = 3 if kind == 2 else 4
    data, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height, width, channels), np.int64)
    above = np.zeros((width, channels), np.int64)
    for number, line in enumerate(lines):
        above = pixels[number] = unfilter(int(line[0]), line[1:].reshape(width, channels), above)
    red, green, blue = (pixels[:, :, place].reshape(-1) for place in range(3))
    packed, place, counts = np.unique(
        red << 16 | green << 8 | blue, return_inverse=True, return_counts=True
    )
    colors = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    # The most frequent colors stay exact. Others, at the edges of letters, become the nearest one.
    palette = colors[np.sort(np.argsort(counts)[-256:])]
    distances = ((colors[:, None, :] - palette[None, :, :]) ** 2).sum(axis=2)
    index = distances.argmin(axis=1)[place]
    rows = np.zeros((height, 1 + width), np.uint8)
    rows[:, 1:] = index.reshape(height, width)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return png[:8] + b"".join(written)


def unfilter(kind: int, line: Any, above: Any) -> Any:
    """Undo the filter of one line of a PNG file."""
    given = line.astype(np.int64)
    if kind == 0:
        return given
    if kind == 2:
        return (given + above) & 255
    if kind == 1:
        return np.cumsum(given, axis=0) & 255
    done = np.zeros_like(given)
    left = corner = np.zeros(given.shape[1], np.int64)
    for at in range(len(given)):
        up = above[at]
        if kind == 3:
            left = (given[at] + (left + up) // 2) & 255
        else:
            guess = left + up - corner
            near = np.abs(np.stack([guess - left, guess - up, guess - corner]))
            best = np.argmin(near, axis=0)
            left = (given[at] + np.choose(best, [left, up, corner])) & 255
        corner = up
        done[at] = left
    return done


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2:] or list(PAGES)
    with LocalService(console="write") as service, sync_playwright() as playwright:
        fill(service)
        key = access_key(service)
        launched = playwright.chromium.launch(
            executable_path=find_or_install_browser(), args=["--no-sandbox", "--disable-gpu"]
        )
        user = open_browser(launched, service.url)
        user.log_in(key)
        for name in chosen:
            page = user.go(PAGES[name])
            if name in {"query", "select"}:
                page.get_by_role("button", name="Run").click()
                page.get_by_role("heading", name="Result").wait_for()
            for theme in ("light", "dark"):
                for width, height in ((1100, 800), (390, 800)):
                    page.emulate_media(color_scheme=theme)
                    page.set_viewport_size({"width": width, "height": height})
                    # The browser may have scrolled to a result.
                    page.evaluate("scrollTo(0, 0)")
                    shot = shrink(page.screenshot(full_page=False))
                    file = folder / f"{name}-{theme}-{width}.png"
                    file.write_bytes(shot)
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    mark = "" if len(shot) <= MAX_BYTES and wide <= width else "  TOO MUCH"
                    print(f"{file.name:34} {len(shot):7,} bytes, {wide} wide{mark}")
        launched.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
