"""What stands around values is what a body of one column has around them."""

from __future__ import annotations

import json

import pytest

from snowmelt.functions.caller.arrow_types import make_row_prefixes
from snowmelt.functions.wire.messages import make_row_numbers


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1000])
@pytest.mark.parametrize(("blank", "separators"), [("", (",", ":")), (" ", (", ", ": "))])
def test_leads_and_values_are_a_body(count, blank, separators):
    around = make_row_prefixes(count, '"', '"', blank).to_pylist()
    body = "".join(f"{lead}x" for lead in around) + '"]]}'
    rows = [[at, "x"] for at in range(count)]
    assert body == json.dumps({"data": rows}, separators=separators)


def test_numbers_begin_with_zero():
    assert make_row_numbers(3) == [0, 1, 2]
