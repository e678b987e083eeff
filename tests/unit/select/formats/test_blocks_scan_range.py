"""A ScanRange takes the records whose first byte lies in it."""

from __future__ import annotations

import pytest

from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import RecordStartSpan, resolve_scan_range
from snowmelt.select.request import ScanRange


@pytest.mark.parametrize(
    ("scan_range", "span"),
    [
        (None, RecordStartSpan(0, None)),
        (ScanRange(), RecordStartSpan(0, None)),
        (ScanRange(start=5, end=9), RecordStartSpan(5, 10)),
        (ScanRange(start=5, end=5), RecordStartSpan(5, 6)),
        (ScanRange(start=5), RecordStartSpan(5, None)),
        (ScanRange(end=30), RecordStartSpan(70, None)),
        (ScanRange(end=300), RecordStartSpan(0, None)),
        (ScanRange(end=0), RecordStartSpan(100, None)),
        (ScanRange(start=0, end=1000), RecordStartSpan(0, 1001)),
    ],
)
def test_both_ends_are_included_and_an_end_alone_counts_from_the_back(
    scan_range: ScanRange | None, span: RecordStartSpan
) -> None:
    assert resolve_scan_range(scan_range, 100) == span


@pytest.mark.parametrize(
    "scan_range",
    [ScanRange(5, 4), ScanRange(-1, 4), ScanRange(0, -1), ScanRange(100, 200), ScanRange(end=-1)],
)
def test_ranges_that_are_none_are_refused(scan_range: ScanRange) -> None:
    with pytest.raises(SelectError) as refused:
        resolve_scan_range(scan_range, 100)
    assert refused.value.s3_code == "InvalidScanRange"


@pytest.mark.parametrize(("size", "compression"), [(100, "GZIP"), (-1, "NONE")])
def test_only_plain_objects_have_ranges(size: int, compression: str) -> None:
    with pytest.raises(SelectError) as refused:
        resolve_scan_range(ScanRange(0, 10), size, compression=compression)
    assert refused.value.s3_code == "UnsupportedScanRangeInput"


def test_a_range_from_the_front_of_an_empty_object_is_empty() -> None:
    assert resolve_scan_range(ScanRange(0, 10), 0) == RecordStartSpan(0, 11)
