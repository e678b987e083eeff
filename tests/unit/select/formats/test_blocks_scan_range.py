"""A ScanRange takes the records whose first byte lies in it."""

import pytest

from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import ByteSpan, resolve_scan_range
from snowmelt.select.request import ScanRange


@pytest.mark.parametrize(
    ("scan_range", "span"),
    [
        (None, ByteSpan(0, None)),
        (ScanRange(), ByteSpan(0, None)),
        (ScanRange(start=5, end=9), ByteSpan(5, 10)),
        (ScanRange(start=5, end=5), ByteSpan(5, 6)),
        (ScanRange(start=5), ByteSpan(5, None)),
        (ScanRange(end=30), ByteSpan(70, None)),
        (ScanRange(end=300), ByteSpan(0, None)),
        (ScanRange(end=0), ByteSpan(100, None)),
        (ScanRange(start=0, end=1000), ByteSpan(0, 1001)),
    ],
)
def test_both_ends_are_included_and_an_end_alone_counts_from_the_back(scan_range, span):
    assert resolve_scan_range(scan_range, 100) == span


@pytest.mark.parametrize(
    "scan_range",
    [ScanRange(5, 4), ScanRange(-1, 4), ScanRange(0, -1), ScanRange(100, 200), ScanRange(end=-1)],
)
def test_ranges_that_are_none_are_refused(scan_range):
    with pytest.raises(SelectError) as refused:
        resolve_scan_range(scan_range, 100)
    assert refused.value.s3_code == "InvalidScanRange"


@pytest.mark.parametrize(("size", "compression"), [(100, "GZIP"), (-1, "NONE")])
def test_only_plain_objects_have_ranges(size, compression):
    with pytest.raises(SelectError) as refused:
        resolve_scan_range(ScanRange(0, 10), size, compression=compression)
    assert refused.value.s3_code == "UnsupportedScanRangeInput"


def test_a_range_from_the_front_of_an_empty_object_is_empty():
    assert resolve_scan_range(ScanRange(0, 10), 0) == ByteSpan(0, 11)
