"""Engine in a separate environment. Reads requests and writes responses, one JSON object per line.

Run as `python engine_process.py ENGINE URI WAREHOUSE TOKEN [MORE]`. Requests: {"query": SQL} for DuckDB,
ClickHouse and Spark, {"table": "schema.table", "columns": [...]} for the others. These count rows
if there are no columns, or sum the column "total". Polars also accepts "where", a serialized expression, and
"whole": true reads the table before the condition is evaluated. PyIceberg also accepts {"append": CHANNEL,
"rows": N} and {"delete": CONDITION} with a table. DuckDB also accepts {"arrow": PATH} with a query, and
writes its rows to that file instead of returning them.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog

    Answer = Callable[[dict[str, Any]], Any]


def duckdb_reader(uri: str, warehouse: str, token: str) -> Answer:
    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        found = find_spec(f"duckdb_extension_{name}")
        assert found is not None
        assert found.origin is not None
        folder = Path(found.origin).parent
        [file] = folder.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    given = f"TOKEN '{token}'" if token else "AUTHORIZATION_TYPE 'none'"
    connection.execute(f"ATTACH '{warehouse}' AS lake (TYPE iceberg, ENDPOINT '{uri}', {given})")

    def answer(request: dict[str, Any]) -> Any:
        result = connection.execute(request["query"])
        if path := request.get("arrow"):
            import pyarrow.ipc

            found = result.to_arrow_table()
            assert found is not None
            with pyarrow.ipc.new_file(path, found.schema) as file:
                file.write_table(found)
            return []
        return result.fetchall()

    return answer


def open_catalog(uri: str, warehouse: str, token: str) -> Catalog:
    from pyiceberg.catalog import load_catalog

    given = {"token": token} if token else {}
    return load_catalog("lake", type="rest", uri=uri, warehouse=warehouse, **given)


def make_batch(schema: Any, channel: str, count: int) -> Any:
    """Return rows of one channel, numbered from 0, with the first two columns of a table."""
    import pyarrow as pa

    first, second, *others = schema
    return pa.table(
        [
            pa.array([channel] * count, first.type),
            pa.array(range(count), pa.decimal128(38, 0)).cast(second.type),
            *(pa.nulls(count, field.type) for field in others),
        ],
        schema=schema,
    )


def pyiceberg_reader(uri: str, warehouse: str, token: str) -> Answer:
    import pyarrow.compute as pc

    catalog = open_catalog(uri, warehouse, token)

    def answer(request: dict[str, Any]) -> Any:
        table = catalog.load_table(request["table"])
        if delete := request.get("delete"):
            table.delete(delete)
            return []
        if batch := request.get("append"):
            table.append(make_batch(table.schema().as_arrow(), batch, request["rows"]))
            return []
        if total := request.get("total"):
            return [[pc.sum(table.scan(selected_fields=(total,)).to_arrow()[total])]]
        if not request["columns"]:
            return [[table.scan().count()]]
        found = table.scan(selected_fields=tuple(request["columns"])).to_arrow()
        return [list(row.values()) for row in found.select(request["columns"]).to_pylist()]

    return answer


def polars_reader(uri: str, warehouse: str, token: str) -> Answer:
    import polars

    catalog = open_catalog(uri, warehouse, token)

    def answer(request: dict[str, Any]) -> Any:
        frame = polars.scan_iceberg(catalog.load_table(request["table"]))
        if total := request.get("total"):
            return frame.select(polars.col(total).sum()).collect().rows()
        if where := request.get("where"):
            condition = polars.Expr.deserialize(io.BytesIO(base64.b64decode(where)))
            # For comparison, evaluate the condition after reading all rows, without pushing it
            # down.
            frame = frame.collect().lazy() if request.get("whole") else frame
            frame = frame.filter(condition)
        if not request["columns"]:
            return frame.select(polars.len()).collect().rows()
        return frame.select(request["columns"]).collect().rows()

    return answer


def daft_reader(uri: str, warehouse: str, token: str) -> Answer:
    import daft

    catalog = open_catalog(uri, warehouse, token)

    def answer(request: dict[str, Any]) -> Any:
        frame = daft.read_iceberg(catalog.load_table(request["table"]))
        found = frame.select(*request["columns"]).to_pydict()
        return list(zip(*(found[name] for name in request["columns"]), strict=True))

    return answer


def clickhouse_reader(uri: str, warehouse: str, token: str, s3: str) -> Answer:
    from chdb.session import Session

    session = Session()
    key, _, secret = token.partition(".")
    session.query("SET allow_experimental_database_iceberg = 1")
    session.query(
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{uri}/v1', '', '') SETTINGS "
        f"catalog_type = 'rest', warehouse = '{warehouse}', storage_endpoint = '{s3}', "
        f"catalog_credential = '{key}:{secret}', oauth_server_uri = '{uri}/v1/oauth/tokens'"
    )

    def answer(request: dict[str, Any]) -> Any:
        found = session.query(request["query"], "JSONCompact")
        return json.loads(str(found))["data"] if str(found) else []

    return answer


def spark_reader(uri: str, warehouse: str, token: str, jars: str, caches: str = "false") -> Answer:
    from pyspark.sql import SparkSession

    key, _, secret = token.partition(".")
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": uri,
        ".warehouse": warehouse,
        ".credential": f"{key}:{secret}",
        ".oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".cache-enabled": caches,
    }
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    for name, value in catalog.items():
        builder = builder.config(f"spark.sql.catalog.lake{name}", value)
    spark = builder.getOrCreate()

    def answer(request: dict[str, Any]) -> Any:
        return [tuple(row) for row in spark.sql(request["query"]).collect()]

    return answer


READERS: dict[str, Callable[..., Answer]] = {
    "duckdb": duckdb_reader,
    "pyiceberg": pyiceberg_reader,
    "polars": polars_reader,
    "daft": daft_reader,
    "clickhouse": clickhouse_reader,
    "spark": spark_reader,
}


def main() -> None:
    engine, *arguments = sys.argv[1:]
    answer = READERS[engine](*arguments)
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        try:
            rows = [
                [None if v is None else str(v) for v in row] for row in answer(json.loads(line))
            ]
            reply: dict[str, Any] = {"rows": rows}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
