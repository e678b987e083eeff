"""After the warm-up, parsers compile nothing."""

from __future__ import annotations

import pytest

from snowmelt import jit
from snowmelt.load.parsers.warmup import _SCHEMA, warm_up_parsers
from support.parser_runs import load


def _signatures():
    return {each.__name__.lstrip("_"): list(each.signatures) for each in jit._KERNELS}


@pytest.mark.slow
def test_what_was_warmed_up_compiles_for_no_other_text():
    warm_up_parsers()
    before = _signatures()
    assert before["find_records"]
    assert before["frame_objects"]
    delimited = '7,1.5,2e3,"a ""b""",2020-02-29,2020-02-29T01:02:03Z,,false\n,,,,,,,\nx,y\n'
    load("delimited", delimited.encode() * 2_000, schema=_SCHEMA, delimiter=",", enclosed_by='"')
    lines = '{"N": 12, "T": "é", "Z": null}\n{"N": "x"}\n{"N": [}\n'
    load("json", lines.encode() * 2_000, schema=_SCHEMA)
    assert _signatures() == before
