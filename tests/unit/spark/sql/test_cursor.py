"""Names in statements for Spark."""

from __future__ import annotations

from snowmelt.spark.sql.cursor import parse_dotted_name


def test_a_dotted_name_is_folded_unless_quoted() -> None:
    assert parse_dotted_name("demo.Public.flights") == ("DEMO", "PUBLIC", "FLIGHTS")
    assert parse_dotted_name('demo."Public".`fl ights`') == ("DEMO", "Public", "fl ights")
    assert parse_dotted_name("demo public") == ()
    assert parse_dotted_name("") == ()
