"""An engine in an environment of its own: reads requests and writes answers, one JSON object a line.

Run as `python engine_process.py ENGINE URI WAREHOUSE TOKEN`. Requests: {"query": SQL} for DuckDB, or
{"table": "schema.table", "columns": [...]} for the others, which return their rows.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path


def duckdb_reader(uri, warehouse, token):
    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        folder = Path(find_spec(f"duckdb_extension_{name}").origin).parent
        [file] = folder.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    given = f"TOKEN '{token}'" if token else "AUTHORIZATION_TYPE 'none'"
    connection.execute(f"ATTACH '{warehouse}' AS lake (TYPE iceberg, ENDPOINT '{uri}', {given})")

    def answer(request):
        return connection.execute(request["query"]).fetchall()

    return answer


def open_catalog(uri, warehouse, token):
    from pyiceberg.catalog import load_catalog

    given = {"token": token} if token else {}
    return load_catalog("lake", type="rest", uri=uri, warehouse=warehouse, **given)


def pyiceberg_reader(uri, warehouse, token):
    catalog = open_catalog(uri, warehouse, token)

    def answer(request):
        table = catalog.load_table(request["table"])
        found = table.scan(selected_fields=tuple(request["columns"])).to_arrow()
        return [list(row.values()) for row in found.select(request["columns"]).to_pylist()]

    return answer


def polars_reader(uri, warehouse, token):
    import polars

    catalog = open_catalog(uri, warehouse, token)

    def answer(request):
        frame = polars.scan_iceberg(catalog.load_table(request["table"]))
        return frame.select(request["columns"]).collect().rows()

    return answer


READERS = {"duckdb": duckdb_reader, "pyiceberg": pyiceberg_reader, "polars": polars_reader}


def main():
    engine, uri, warehouse, token = sys.argv[1:]
    answer = READERS[engine](uri, warehouse, token)
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        try:
            rows = [
                [None if v is None else str(v) for v in row] for row in answer(json.loads(line))
            ]
            reply = {"rows": rows}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
