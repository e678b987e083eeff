"""Schema evolution for rows of the official SDK, if table and role allow it."""

from __future__ import annotations

import pytest

from fixtures.rows import RowService


@pytest.fixture(scope="module")
def service(row_service: RowService) -> RowService:
    for name in ("follows", "stays"):
        row_service.service.sql(
            f"CREATE TABLE demo.public.{name} (id NUMBER NOT NULL, name VARCHAR NOT NULL)"
            " ENABLE_SCHEMA_EVOLUTION = TRUE",
            f"GRANT INSERT ON TABLE demo.public.{name} TO ROLE loading",
        )
    row_service.service.sql("GRANT EVOLVE SCHEMA ON TABLE demo.public.follows TO ROLE loading")
    return row_service


def test_a_role_that_may_not_evolve_the_table_is_told_so(service: RowService) -> None:
    writer = service.writer("STAYS", table_mode=True)
    writer.tell("open", "c")
    writer.tell("append", "c", [{"id": 1, "name": "one"}, {"id": 2, "name": "x", "gate": 7}], "1")
    writer.tell("flush")
    refused = writer.tell("status", "c", 2)
    assert (refused["inserted"], refused["errors"]) == (1, 1)
    assert "GATE" in refused["last_error"].upper()
    assert "EVOLVE SCHEMA" in refused["last_error"]


def test_columns_come_with_the_rows(service: RowService) -> None:
    writer = service.writer("FOLLOWS", table_mode=True)
    writer.tell("open", "c")
    rows = [
        {"id": 1, "name": "one"},
        {"id": 2, "name": "two", "gate": 7, "Speed": 1.5},
        {"id": 3, "gate": None, "tags": ["a", {"b": 1}], "on time": True},
        {"id": 4, "name": "four", "gate": "B12"},
    ]
    writer.tell("append", "c", rows[:3], "1", "3")
    writer.tell("commit", "c", "3")
    writer.tell("append", "c", rows[3:], "4", "4")
    writer.tell("commit", "c", "4")
    described = service.service.sql("DESCRIBE TABLE demo.public.follows").rows
    kinds = {row[0]: (str(row[1]).partition("(")[0], row[2]) for row in described}
    assert kinds == {
        "ID": ("NUMBER", False),
        "NAME": ("VARCHAR", True),
        "GATE": ("NUMBER", True),
        "SPEED": ("FLOAT", True),
        "TAGS": ("VARIANT", True),
        "ON TIME": ("BOOLEAN", True),
    }
    assert service.rows("FOLLOWS", ["ID", "NAME", "GATE", "SPEED", "TAGS", "ON TIME"]) == [
        (1, "one", None, None, None, None),
        (2, "two", 7, 1.5, None, None),
        (3, None, None, None, '["a",{"b":1}]', True),
    ]
    # A column keeps the type of its first values.
    status = writer.tell("status", "c", 4)
    assert (status["inserted"], status["errors"]) == (3, 1)
    assert "GATE" in status["last_error"]
