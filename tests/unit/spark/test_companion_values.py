"""Companions of the columns of a relation."""

from __future__ import annotations

import pytest

from snowmelt.spark.companion_values import map_companions


@pytest.mark.parametrize(
    ("names", "companions"),
    [
        (["id", "at", "at$ns", "at$tz"], {("at", "$ns"): "at$ns", ("at", "$tz"): "at$tz"}),
        (["a", "a$ns", "A_3", "A$ns_3"], {("a", "$ns"): "a$ns", ("a_3", "$ns"): "A$ns_3"}),
        # Columns "a", "A" and "A_3": the last one is not the column of A$ns_3.
        (
            ["a", "a$ns", "A_3", "A$ns_3", "A_3_4", "A_3$ns"],
            {("a", "$ns"): "a$ns", ("a_3", "$ns"): "A$ns_3", ("a_3_4", "$ns"): "A_3$ns"},
        ),
        (["c", "c$ns", "c_2", "c_2$ns"], {("c", "$ns"): "c$ns", ("c_2", "$ns"): "c_2$ns"}),
        (["x", "y", "x$ns", "Y$NS"], {("x", "$ns"): "x$ns", ("y", "$ns"): "Y$NS"}),
        (["ab", "a$ns"], {("a", "$ns"): "a$ns"}),
        (["x", "x$n", "$"], {}),
    ],
)
def test_companions_follow_their_column_or_have_its_name(
    names: list[str], companions: dict[tuple[str, str], str]
) -> None:
    assert map_companions(names) == companions
