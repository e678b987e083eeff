"""Every value that the official Java client can write, through TLS and a stage on S3, seen by Spark.

What it must be is in data/values.jsonl, which was recorded from the client's own code.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fixtures.java import JavaError, JavaSdk
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.spark import Snowmelt
from support.java_client import Loading
from support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.slow, pytest.mark.spark]

EXACT = Context(prec=400)
VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "values.jsonl")
    .read_text("utf-8")
    .splitlines()
]
TYPES = list(dict.fromkeys(vector["type"] for vector in VECTORS))
COLUMNS = {kind: f"C{number}" for number, kind in enumerate(TYPES)}
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
SEMI_STRUCTURED = {"VARIANT", "ARRAY", "OBJECT"}
DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service whose ports speak TLS, and the options by which Java trusts it."""
    folder = tmp_path_factory.mktemp("secure")
    certs = folder / "certs"
    command = [sys.executable, "-m", "snowmelt", "cert", "--out", certs]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=280)
    s3_port = free_port()
    settings = {
        "TLS_CERT": str(certs / "server.pem"),
        "TLS_KEY": str(certs / "server.key"),
        "S3_PORT": str(s3_port),
        "STAGE_ENDPOINT": f"https://127.0.0.1:{s3_port}",
    }
    service = ServiceProcess(folder / "data", free_port(), ca_file=certs / "ca.pem")
    service.environment.update({f"SNOWMELT_{name}": value for name, value in settings.items()})
    service.start()
    yield service
    service.kill()


@pytest.fixture
def trusted(secure: ServiceProcess, tmp_path: Path) -> list[Any]:
    store = tmp_path / "trusted.p12"
    command = [
        *("keytool", "-importcert", "-noprompt", "-file", str(secure.ca_file)),
        *("-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStorePassword=changeit",
    ]


def given(vector: Any) -> Any:
    value = vector["input"]
    if "Invalid Unicode" in vector.get("message", ""):
        # The file cannot hold the lone surrogate that was given.
        return value | {"v": value["v"].replace("?", "\ud800")}
    return value


def is_readable(vector: Any) -> Any:
    """Whether every reader can hold what the client accepts (0037): chunks with others are refused."""
    if "error" in vector or vector.get("value", ...) is None:
        return True
    kind = vector["col"]["logical_type"]
    if kind in SEMI_STRUCTURED:
        numbers: list[Any] = []
        with contextlib.suppress(json.JSONDecodeError):
            json.loads(text(vector), parse_float=numbers.append, parse_int=numbers.append)
        return not any(math.isinf(float(number)) for number in numbers)
    if kind == "DATE":
        return FIRST_DAY <= vector["value"] <= LAST_DAY
    if not kind.startswith("TIMESTAMP"):
        return True
    unit = 10 ** vector["col"]["scale"]
    number, offset_s = stored(vector), 0
    if kind == "TIMESTAMP_TZ":
        number, offset_s = number >> 14, ((number & 0x3FFF) - 1440) * 60
    # The first day of year 1 is in no reader's range as an instant.
    first = FIRST_DAY + (kind != "TIMESTAMP_NTZ")
    days = number // unit / 86_400, (number // unit + offset_s) / 86_400
    return first <= days[0] < LAST_DAY + 1 and FIRST_DAY <= days[1] < LAST_DAY + 1


def stored(vector: Any) -> int:
    """The number that the client wrote."""
    if "value_hex" in vector:
        return int.from_bytes(bytes.fromhex(vector["value_hex"]), "big", signed=True)
    return int(vector["value"])


def expected(vector: Any) -> tuple[Any, Any, int | None]:
    """A column's value in Spark, then those of its companions."""
    column = vector["col"]
    kind, scale = column["logical_type"], column["scale"]
    if vector.get("value", ...) is None:
        return None, None, None
    match kind:
        case "FIXED":
            return Decimal(stored(vector)).scaleb(-scale, EXACT), None, None
        case "REAL":
            return (
                struct.unpack(">d", int(vector["value_double_bits"], 16).to_bytes(8, "big"))[0],
                None,
                None,
            )
        case "BOOLEAN" | "DATE":
            return vector["value"], None, None
        case "BINARY":
            return bytes.fromhex(vector["value_hex"]), None, None
        case "TIME" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ":
            return *split(stored(vector), scale), None
        case "TIMESTAMP_TZ":
            packed = stored(vector)
            return *split(packed >> 14, scale), (packed & 0x3FFF) - 1440
    return text(vector), None, None


def text(vector: Any) -> Any:
    """A text that the file shows as it is, or in hexadecimal."""
    if "value_str" in vector:
        return vector["value_str"]
    return bytes.fromhex(vector["value_hex"]).decode()


def split(number: int, scale: Any) -> tuple[Any, Any]:
    micros, nanos = divmod(number * 10 ** (9 - scale), 1000)
    return micros, nanos if scale > 6 else None


def micros(array: Any) -> Any:
    kind = array.type
    if pa.types.is_time64(kind) or pa.types.is_time32(kind):
        array = array.cast(pa.time64("us")).cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        assert kind.unit == "us"
        array = array.cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.int32())
    return array.to_pylist()


def seen(frame: DataFrame) -> dict[Any, Any]:
    """Rows by their number; each a dict of column to values that Python can compare."""
    texts = [
        f"to_json({column}) AS {column}" if kind in SEMI_STRUCTURED else f"{column}"
        for kind, column in COLUMNS.items()
    ]
    companions = [f"`{name}`" for name in frame.columns if "$" in name]
    table = frame.selectExpr("N", *texts, *companions).toArrow()
    columns = {name: micros(table.column(name).combine_chunks()) for name in table.column_names}
    return {
        int(number): {name: values[row] for name, values in columns.items()}
        for row, number in enumerate(columns["N"])
    }


def same(kind: Any, found: Any, wanted: Any) -> Any:
    if kind in SEMI_STRUCTURED and wanted is not None:
        return same_document(found, wanted)
    if isinstance(wanted, float):
        both_nan = math.isnan(wanted) and math.isnan(found)
        return both_nan or struct.pack(">d", found) == struct.pack(">d", wanted)
    return found == wanted


def same_document(found: Any, wanted: Any) -> Any:
    """Spark's VARIANT keeps what a double or 38 digits can say; a text that is no JSON stays one."""
    read: dict[str, Any] = {"parse_float": float, "parse_int": lambda text: float(text)}
    try:
        document = json.loads(wanted, **read)
    except json.JSONDecodeError:
        document = wanted
    return json.loads(found, **read) == document


def test_what_the_client_writes_is_what_spark_reads(
    secure: ServiceProcess,
    trusted: Any,
    sdk: JavaSdk,
    key_pair: KeyPair,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    with sdk.driver(tmp_path, *trusted) as driver:
        loading = Loading(secure, driver, key_pair)
        table = f"{loading.database}.public.v"
        columns = ", ".join(f"{name} {kind}" for kind, name in COLUMNS.items())
        secure.sql(
            f"CREATE TABLE {table} (n NUMBER(9,0) NOT NULL, {columns})",
            f"GRANT INSERT ON TABLE {table} TO ROLE loading",
        )
        loading.connect("c")
        refused: dict[Any, Any] = {}
        for zone in sorted({vector["tz"] for vector in VECTORS}):
            of_zone = [n for n, vector in enumerate(VECTORS) if vector["tz"] == zone]
            chosen = [n for n in of_zone if is_readable(VECTORS[n])]
            rows = [{"n": n, COLUMNS[VECTORS[n]["type"]]: given(VECTORS[n])} for n in chosen]
            loading.open("c", zone, zone, table="v", zone=zone)
            errors = loading.insert(zone, rows, zone)
            refused |= {chosen[error["row"]]: error["code"] for error in errors}
        for zone in {vector["tz"] for vector in VECTORS}:
            loading.wait(zone, zone)
        unreadable = [n for n, vector in enumerate(VECTORS) if not is_readable(vector)]
        for n in unreadable:
            name, zone = f"unreadable-{n}", VECTORS[n]["tz"]
            loading.open("c", name, name, table="v", zone=zone)
            row = {"n": n, COLUMNS[VECTORS[n]["type"]]: given(VECTORS[n])}
            assert not loading.insert(name, [row], name)
            with pytest.raises(JavaError, match=rf"column {COLUMNS[VECTORS[n]['type']]} of type"):
                loading.wait(name, name)
    assert unreadable
    codes = {
        n: "0001" if vector["error"] == "UNEXPECTED" else vector["error"]
        for n, vector in enumerate(VECTORS)
        if "error" in vector
    }
    lenient = {n for n in codes if n not in refused}
    assert refused == {n: code for n, code in codes.items() if n not in lenient}
    # Before its newer reader of JSON the client took keys that come twice.
    assert all("duplicate field" in VECTORS[n]["message"] for n in lenient)
    assert not lenient or sdk.version.startswith("2")
    settings = secure.settings
    with Snowmelt(
        spark,
        catalog=settings.catalog_url,
        stage=settings.stage_url,
        warehouse=settings.warehouse_url,
        keys=settings.keys_dir,
    ) as lake:
        check(seen(lake.sql(f"SELECT * FROM {table}")), lenient)
        left = len(VECTORS) - len(refused) - len(unreadable)
        assert [done.rows for done in lake.migrate(table)] == [left]
        check(seen(lake.sql(f"SELECT * FROM {table}")), lenient)


def check(rows: Any, lenient: set[int]) -> None:
    good = {
        n: vector
        for n, vector in enumerate(VECTORS)
        if "error" not in vector and is_readable(vector)
    }
    assert rows.keys() == good.keys() | lenient
    wrong = []
    for n, vector in good.items():
        column, row = COLUMNS[vector["type"]], rows[n]
        wanted = expected(vector)
        found = row[column], row.get(f"{column}$ns"), row.get(f"{column}$tz")
        if not same(vector["type"], found[0], wanted[0]) or found[1:] != wanted[1:]:
            wrong.append((n, vector["type"], vector["input"], wanted, found))
        others = [name for name in row if name.partition("$")[0] not in {"N", column}]
        assert all(row[name] is None for name in others)
    assert not wrong, wrong[:20]
