"""The Python code on the SDK's pages runs as it is written there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snowmelt.testing import disarm
from support.docs_pages import blocks

pytest_plugins = ["snowmelt.testing.plugin"]

# Where the pages' service and key are.
SDK = {
    '"http://127.0.0.1:8080", user="loader", private_key="key.pem"': "url, **who",
    "snowmelt.Client(url, on_problem": "snowmelt.Client(url, **who, on_problem",
}


def run(page, client, names, instead=()):
    for number, block in enumerate(blocks(page, "python", dict(instead))):
        names["client"] = client
        exec(compile(block, f"{page}, block {number}", "exec"), names)
        disarm()  # what a page arms stops nothing of the next block
        if names["client"] is not client:
            names["client"].close()


@pytest.mark.slow
def test_the_code_of_the_pages_runs(snowmelt_service, snowmelt_client, snowmelt_table):
    service = snowmelt_service
    table = service.create_table("demo.public.orders", "id INT, name VARCHAR")
    key = service.folder / "data" / "keys" / "embedded.pem"
    names = {
        "url": service.url,
        "who": {"user": "EMBEDDED", "private_key": key},
        "rows": [{"id": 3}, {"id": 4, "name": b"refused"}, {"id": 5}],
        "fetch": {6: {"id": 6}, 7: {"id": 7}}.get,
        "frame": pa.table({"id": [9]}),
        "alert": print,
    }
    run("how-to/stream-from-python.md", snowmelt_client, names, SDK)
    run("reference/value-conversion.md", snowmelt_client, names)
    names["channel"].flush()
    # The second source goes on behind what the first one committed.
    assert [row["ID"] for row in service.rows(table)] == [1, 2, 3, 5, 6, 7, 9]
    run("how-to/test-applications.md", snowmelt_client, names)
    names["test_orders_arrive"](service, snowmelt_client, snowmelt_table)
