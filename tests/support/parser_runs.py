"""Runs a parser by name over bytes or messages, and adds up what comes of them."""

from __future__ import annotations

import pyarrow as pa

from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ByteReader, ParseTarget
from snowmelt.load.portion import InputFile, Portion

FILE = InputFile("x")
WHOLE = Portion(FILE)


def load(name, data, schema, *, portion=WHOLE, size=None, options=None, **parameters):
    """Return rows and rejects of bytes that come in pieces of `size`."""
    step = size or len(data) or 1
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    parser = definition(name).build_phase(parameters)
    return _summed(parser.parse(ByteReader(pieces), ParseTarget(schema, options or {}), portion))


def load_records(name, messages, schema, **parameters):
    """Return rows and rejects of messages."""
    batches = iter([pa.array(messages, pa.binary())])
    return _summed(
        definition(name).build_phase(parameters).parse_records(batches, ParseTarget(schema))
    )


def _summed(parts):
    parts = list(parts)
    rows = [tuple(row.values()) for part in parts for row in part.rows.to_pylist()]
    rejects = [reject for part in parts for reject in part.rejects]
    assert sum(part.records for part in parts) == len(rows) + len(rejects)
    numbers = [reject.record for reject in rejects]
    assert numbers == sorted(set(numbers))
    return rows, rejects
