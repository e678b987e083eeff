"""Spark session of Snowmelt in a process of its own, for statements and whole tables.

Run as `python -m support.system_model.spark_process DATA_FOLDER`. Requests are pairs: a statement and None,
or the name of a table and a path, to which its rows are written in Arrow's file format. Responses are pairs of
the name of an error, or "ok", and a text.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from support.system_model.writer_process import receive_message, send_message

if TYPE_CHECKING:
    from snowmelt.spark import Snowmelt


def main() -> None:
    """Run statements until the input ends."""
    from snowmelt.spark import Snowmelt

    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    lake = Snowmelt.local(sys.argv[1])
    send_message(responses, ("ok", "started"))
    while True:
        try:
            text, path = receive_message(requests)
        except EOFError:
            return
        try:
            response = ("ok", _run(lake, text) if path is None else _write(lake, text, path))
        except Exception as error:
            response = (type(error).__name__, str(error))
        send_message(responses, response)


def _run(lake: Snowmelt, statement: str) -> str:
    return str(lake.sql(statement).collect())


def _write(lake: Snowmelt, table: str, path: str) -> str:
    from pyspark.sql.types import VariantType

    frame = lake.table(table)
    names = [f"`{field.name.replace('`', '``')}`" for field in frame.schema]
    values = [
        f"to_json({name}) AS {name}" if isinstance(field.dataType, VariantType) else name
        for name, field in zip(names, frame.schema, strict=True)
    ]
    data = frame.selectExpr(*values).toArrow()
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
        writer.write_table(data)
    return f"{data.num_rows} rows"


if __name__ == "__main__":
    main()
