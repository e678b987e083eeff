"""Other engines change rows through the Iceberg REST catalog while rows stream in."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, RESTError, ValidationException

from fixtures.engine_writes import insert, recording_commits, rows_of, seen_by_snowmelt
from fixtures.engines import Lake
from fixtures.s3 import s3_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog

    from fixtures.service import KeyPair


pytestmark = pytest.mark.slow
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[Any]:
    """A service with table T (ID, NAME, AT), which role READING may change."""
    process = s3_process(tmp_path_factory.mktemp("commits"))
    found = Lake(process, key_pair)
    yield found
    process.service.kill()


@pytest.fixture
def name(lake: Any) -> Any:
    """A new table that the engine's role may read and change."""
    name = f"w{next(_NUMBERS)}"
    lake.service.sql(
        f"CREATE TABLE demo.public.{name} (id NUMBER(9,0) NOT NULL, name VARCHAR(5), "
        "at TIMESTAMP_NTZ)",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE demo.public.{name} TO ROLE reading",
        f"GRANT INSERT ON TABLE demo.public.{name} TO ROLE loading",
    )
    return name


@pytest.fixture
def catalog(lake: Any) -> Any:
    return load_catalog("lake", type="rest", uri=lake.uri, warehouse="DEMO", token=lake.token)


def load(catalog: Catalog, name: str, count: int) -> Any:
    """Load a table when all of its rows are published."""
    while True:
        table = catalog.load_table(f"PUBLIC.{name.upper()}")
        if table.scan().count() == count:
            return table


def seen_by_engine(table: Any) -> Any:
    table.refresh()
    found = table.scan(selected_fields=("ID", "NAME")).to_arrow().to_pylist()
    return sorted((int(row["ID"]), row["NAME"]) for row in found)


def test_an_append_joins_the_rows_that_stream(lake: Any, name: str, catalog: Catalog) -> None:
    insert(lake, name, 0, 3)
    table = load(catalog, name, 3)
    insert(lake, name, 3, 3)
    table.append(rows_of([10, 11]))
    expected = [*((each, f"s{each}") for each in range(6)), (10, "e10"), (11, "e11")]
    assert seen_by_snowmelt(lake, name) == expected
    assert seen_by_engine(table) == expected


def test_an_append_to_an_empty_table(lake: Any, name: str, catalog: Catalog) -> None:
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    table.append(rows_of([1]))
    assert seen_by_snowmelt(lake, name) == seen_by_engine(table) == [(1, "e1")]


def test_a_delete_removes_rows_that_are_not_migrated(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 4)
    table = load(catalog, name, 4)
    insert(lake, name, 4, 4)
    table.delete("ID = 2")
    expected = [(each, f"s{each}") for each in range(8) if each != 2]
    assert seen_by_snowmelt(lake, name) == expected
    assert seen_by_engine(table) == expected


def test_an_overwrite_replaces_native_and_fresh_rows(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 4)
    lake.migrate()
    insert(lake, name, 4, 4)
    table = load(catalog, name, 8)
    table.overwrite(rows_of([2, 6]), overwrite_filter="ID = 2 OR ID = 6")
    expected = [(each, f"{'e' if each in (2, 6) else 's'}{each}") for each in range(8)]
    assert seen_by_snowmelt(lake, name) == expected
    assert seen_by_engine(table) == expected
    insert(lake, name, 8, 2)
    lake.migrate()
    expected += [(8, "s8"), (9, "s9")]
    assert seen_by_snowmelt(lake, name) == expected
    assert seen_by_engine(load(catalog, name, 10)) == expected


def test_deletes_of_different_files_do_not_conflict(lake: Any, name: str, catalog: Catalog) -> None:
    insert(lake, name, 0, 2)
    table = load(catalog, name, 2)
    insert(lake, name, 2, 2)
    lake.migrate()
    early = load(catalog, name, 4)
    insert(lake, name, 4, 2)
    late = load(catalog, name, 6)
    late.delete("ID = 5")
    early.append(rows_of([9]))
    table.append(rows_of([10]))
    kept = [(each, f"s{each}") for each in range(5)]
    assert seen_by_snowmelt(lake, name) == [*kept, (9, "e9"), (10, "e10")]


def test_a_file_that_was_rewritten_meanwhile_is_a_conflict(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 4)
    first = load(catalog, name, 4)
    second = load(catalog, name, 4)
    changing = first.transaction()
    changing.delete("ID = 1")
    second.delete("ID = 2")
    # The service reports a conflict. PyIceberg retries, and finds that its file was removed.
    with pytest.raises(ValidationException, match="Missing required files to delete"):
        changing.commit_transaction()
    assert seen_by_snowmelt(lake, name) == [(0, "s0"), (1, "s1"), (3, "s3")]


def test_a_delete_of_all_rows_keeps_rows_that_came_later(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 4)
    table = load(catalog, name, 4)
    insert(lake, name, 4, 2)
    table.delete("ID >= 0")
    assert seen_by_snowmelt(lake, name) == seen_by_engine(table) == [(4, "s4"), (5, "s5")]


def test_rows_that_do_not_fit_are_refused_by_name(lake: Any, name: str, catalog: Catalog) -> None:
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    with pytest.raises(RESTError, match=r"Column NAME \(VARCHAR\(5\)\)"):
        table.append(rows_of([1], text="too long "))
    assert seen_by_snowmelt(lake, name) == []


def test_a_repeated_request_is_committed_once(lake: Any, name: str, catalog: Catalog) -> None:
    sent: list[Any] = []
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    insert(lake, name, 0, 1)
    with recording_commits(catalog, sent):
        table.append(rows_of([1]))
    [(url, body)] = sent
    headers = {"authorization": f"Bearer {lake.token}"}
    again = httpx.post(url, content=body, headers=headers, timeout=60)
    assert again.status_code == 200
    assert seen_by_snowmelt(lake, name) == [(0, "s0"), (1, "e1")]


def post(lake: Any, url: str, key: str, body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {lake.token}", "idempotency-key": key}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url, content=content, headers=headers, timeout=60)


def test_a_key_commits_rows_once_and_refuses_another_body(
    lake: Any, name: str, catalog: Catalog
) -> None:
    sent: list[Any] = []
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    with recording_commits(catalog, sent):
        table.append(rows_of([1]))
        table.append(rows_of([2]))
    (url, first), (_, second) = sent
    key = str(uuid.uuid4())
    committed = [post(lake, url, key, first) for _ in range(2)]
    assert [each.status_code for each in committed] == [200, 200]
    refused = post(lake, url, key, second)
    assert refused.status_code == 422
    assert refused.json()["error"]["type"] == "UnprocessableEntityException"
    assert key in refused.json()["error"]["message"]
    assert seen_by_snowmelt(lake, name) == [(1, "e1"), (2, "e2")]


def test_a_key_changes_properties_once(lake: Any, name: str, catalog: Catalog) -> None:
    lake.service.sql(f"GRANT OWNERSHIP ON TABLE demo.public.{name} TO ROLE reading")
    url = f"{lake.uri}/v1/DEMO/namespaces/PUBLIC/tables/{name.upper()}"
    older, newer = (
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": value}}]}
        for value in ("older", "newer")
    )
    key = str(uuid.uuid4())
    sent = [(key, older), (str(uuid.uuid4()), newer), (key, older)]
    assert [post(lake, url, *each).status_code for each in sent] == [200, 200, 200]
    assert catalog.load_table(f"PUBLIC.{name.upper()}").properties["a"] == "newer"
    assert post(lake, url, "7", newer).status_code == 400


def test_a_rejection_is_repeated_for_its_key(lake: Any, name: str) -> None:
    url = f"{lake.uri}/v1/DEMO/namespaces/PUBLIC/tables/{name.upper()}"
    lake.service.sql(f"GRANT OWNERSHIP ON TABLE demo.public.{name} TO ROLE reading")
    body = {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 2}],
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    key = str(uuid.uuid4())
    refused = post(lake, url, key, body)
    assert refused.status_code == 409
    lake.service.sql(f"ALTER TABLE demo.public.{name} ADD COLUMN more NUMBER(9,0)")
    again = post(lake, url, key, body)
    assert (again.status_code, again.json()) == (409, refused.json())
    assert post(lake, url, str(uuid.uuid4()), body).status_code == 200
    body["requirements"] = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}]
    refused = post(lake, url, str(uuid.uuid4()), body)
    assert refused.status_code == 406
    assert "Use assert-table-uuid" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("update", "status", "message"),
    [
        ({"action": "set-properties", "updates": {"snowmelt.a": "b"}}, 406, "Property snowmelt.a"),
        (
            {"action": "set-properties", "updates": {"write.merge.mode": "merge-on-read"}},
            406,
            "Use copy-on-write",
        ),
        ({"action": "set-properties", "updates": {"a": 1}}, 400, "'a' is not a text"),
        ({"action": "set-properties", "updates": {"a": "b"}}, 403, "OWNERSHIP"),
        ({"action": "add-schema", "schema": {}}, 406, "ALTER TABLE"),
        ({"action": "explode"}, 400, "update explode is unknown"),
    ],
)
def test_other_changes_are_refused_by_name(
    lake: Any, name: str, update: Any, status: int, message: str
) -> None:
    body = {"requirements": [], "updates": [update]}
    headers = {"authorization": f"Bearer {lake.token}"}
    url = f"{lake.uri}/v1/DEMO/namespaces/PUBLIC/tables/{name.upper()}"
    refused = httpx.post(url, json=body, headers=headers, timeout=60)
    assert refused.status_code == status
    assert message in refused.json()["error"]["message"]


def test_the_role_needs_the_privilege_of_the_change(lake: Any, name: str, catalog: Catalog) -> None:
    insert(lake, name, 0, 4)
    lake.service.sql(f"REVOKE UPDATE, DELETE ON TABLE demo.public.{name} FROM ROLE reading")
    table = load(catalog, name, 4)
    with pytest.raises(ForbiddenError, match="lacks UPDATE"):
        table.delete("ID = 1")
    table.append(rows_of([9]))
    assert [each for each, _ in seen_by_snowmelt(lake, name)] == [0, 1, 2, 3, 9]


def test_the_owner_sets_and_removes_properties(lake: Any, name: str, catalog: Catalog) -> None:
    lake.service.sql(f"GRANT OWNERSHIP ON TABLE demo.public.{name} TO ROLE reading")
    insert(lake, name, 0, 1)
    table = load(catalog, name, 1)
    with table.transaction() as transaction:
        transaction.set_properties({"team": "snow", "write.parquet.row-group-limit": "1000"})
    assert table.properties["team"] == "snow"
    insert(lake, name, 1, 1)
    lake.migrate()
    table = load(catalog, name, 2)
    assert table.properties["team"] == "snow"
    assert table.properties["write.parquet.row-group-limit"] == "1000"
    lake.service.sql(f"TRUNCATE TABLE demo.public.{name}")
    table = load(catalog, name, 0)
    with table.transaction() as transaction:
        transaction.remove_properties("team")
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    assert "team" not in table.properties
    assert "write.parquet.row-group-limit" in table.properties
    with pytest.raises(RESTError, match="65,536"):
        table.transaction().set_properties({"long": "x" * 70_000}).commit_transaction()


def test_rows_and_properties_are_changed_by_a_commit_each(
    lake: Any, name: str, catalog: Catalog
) -> None:
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    transaction = table.transaction().set_properties({"a": "b"})
    transaction.append(rows_of([1]))
    with pytest.raises(RESTError, match="a commit for each"):
        transaction.commit_transaction()
    assert seen_by_snowmelt(lake, name) == []


def test_a_table_without_fresh_rows_is_read_and_written_as_migrated(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 3)
    load(catalog, name, 3)
    lake.migrate()
    lake.service.sql(f"ALTER TABLE demo.public.{name} SET ICEBERG_FRESH = FALSE")
    insert(lake, name, 3, 2)
    table = catalog.load_table(f"PUBLIC.{name.upper()}")
    assert table.scan().count() == 3
    table.append(rows_of([9]))
    assert [each for each, _ in seen_by_engine(table)] == [0, 1, 2, 9]
    assert [each for each, _ in seen_by_snowmelt(lake, name)] == [0, 1, 2, 3, 4, 9]
    table.delete("ID = 1")
    lake.service.sql(f"ALTER TABLE demo.public.{name} UNSET ICEBERG_FRESH")
    assert [each for each, _ in seen_by_engine(load(catalog, name, 5))] == [0, 2, 3, 4, 9]


def test_what_duckdb_inserts_is_stored(lake: Any, name: str, open_engine: Any) -> None:
    insert(lake, name, 0, 2)
    engine = open_engine("duckdb", lake.uri, "DEMO", lake.token)
    engine.ask(
        query=f'INSERT INTO lake.PUBLIC.{name.upper()} (ID, NAME, "AT") '
        "VALUES (5, 'd5', TIMESTAMP '2026-01-01 00:00:00.123456'), (6, NULL, NULL)"
    )
    assert seen_by_snowmelt(lake, name) == [(0, "s0"), (1, "s1"), (5, "d5"), (6, None)]
    found = engine.read(f"PUBLIC.{name.upper()}", "ID", "AT", "AT$ns")
    assert ["5", "2026-01-01 00:00:00.123456", "0"] in found


def test_migrated_rows_alone_are_read_beside_writers(
    lake: Any, name: str, catalog: Catalog
) -> None:
    insert(lake, name, 0, 3)
    load(catalog, name, 3)
    lake.migrate()
    settled = load_catalog(
        "settled", type="rest", uri=lake.uri, warehouse="DEMO@settled", token=lake.token
    )
    table = load(settled, name, 3)
    with pytest.raises(Exception, match="Use warehouse DEMO"):
        table.append(rows_of([9]))
    load(catalog, name, 3).append(rows_of([9]))
    assert seen_by_engine(load(settled, name, 4)) == seen_by_snowmelt(lake, name)
