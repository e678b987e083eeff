from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.aggregates import Accumulator, make_accumulator
from snowmelt.select.sql.ast import AggregateExpr, LiteralExpr
from snowmelt.select.values import INT_MAX, INT_MIN, MISSING
from support.reference_select import ALL, AWS, CEPH, CEPH_2020

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


FUNCTIONS = ("count", "sum", "avg", "min", "max")
INTS = st.lists(st.none() | st.integers(INT_MIN, INT_MAX), max_size=30)
FLOATS = st.lists(st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1e16, -1e16]), max_size=30)


def empty(function: Any, dialect: Any = AWS) -> Accumulator:
    return make_accumulator(AggregateExpr(function, LiteralExpr(1)), dialect)


def folded(
    function: Any, values: list[Any], dialect: Any = AWS
) -> bytes | str | tuple[type[Any], Any]:
    accumulator = empty(function, dialect)
    for value in values:
        accumulator.add_value(value)
    return outcome(accumulator)


def outcome(accumulator: Accumulator) -> bytes | str | tuple[type[Any], Any]:
    try:
        result = accumulator.compute_result()
    except SelectError as error:
        return error.s3_code
    return struct.pack("d", result) if isinstance(result, float) else (type(result), result)


def vector(values: list[Any], kind: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    null = np.array([value is None for value in values], dtype=np.bool_)
    return np.array([0 if value is None else value for value in values], dtype=kind), null


@given(st.data(), st.sampled_from(FUNCTIONS), st.sampled_from(ALL))
def test_vectors_cut_anywhere_give_the_bits_of_single_values(
    data: st.DataObject, function: Any, dialect: Any
) -> None:
    pairs: list[tuple[Any, st.SearchStrategy[Any]]] = [(np.int64, INTS), (np.float64, FLOATS)]
    kind, values = data.draw(st.sampled_from(pairs))
    drawn = data.draw(values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=3)))
    accumulator = empty(function, dialect)
    numbers, null = vector(drawn, kind)
    for start, end in zip([0, *cuts], [*cuts, len(drawn)], strict=True):
        accumulator.add_vector(numbers[start:end], null[start:end])
    assert outcome(accumulator) == folded(function, drawn, dialect)


@given(st.lists(st.integers(INT_MIN, INT_MAX), min_size=1))
def test_sum_of_integers_is_exact_whatever_it_passes_through(values: list[Any]) -> None:
    total = sum(values)
    expected = (int, total) if INT_MIN <= total <= INT_MAX else "IntegerOverflow"
    assert folded("sum", values) == expected
    assert folded("sum", values, CEPH) == expected


@given(st.lists(st.decimals(-(10**12), 10**12, places=4), min_size=1))
def test_sum_of_decimals_is_exact(values: list[Any]) -> None:
    assert folded("sum", values) == (Decimal, sum(values))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200))
def test_sum_of_floats_is_within_an_ulp_of_the_true_one(values: list[Any]) -> None:
    accumulator = empty("sum")
    for value in values:
        accumulator.add_value(value)
    exact = sum(map(Fraction, values))
    bound = Fraction(math.ulp(float(exact))) + Fraction(sum(map(abs, values))) / 2**90
    assert abs(Fraction(cast("float", accumulator.compute_result())) - exact) <= bound


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_extremes_are_the_extremes(values: list[Any]) -> None:
    assert folded("min", values)[:8] == struct.pack("d", min(values))
    assert folded("max", values)[:8] == struct.pack("d", max(values))


def test_nan_is_greater_than_any_number() -> None:
    assert folded("min", [math.nan, 2.0]) == struct.pack("d", 2.0)
    greatest = folded("max", [2.0, math.nan, 3.0])
    assert isinstance(greatest, bytes)
    assert math.isnan(struct.unpack("d", greatest)[0])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dialect", ALL)
def test_null_and_missing_are_passed_over(function: str, dialect: Dialect) -> None:
    assert folded(function, [None, 3, MISSING], dialect) == folded(function, [3], dialect)


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (AWS, [0, None, None, None, None]),
        (CEPH, [0, None, None, None, None]),
        (CEPH_2020, [0, 0, None, INT_MAX, -INT_MAX]),
    ],
)
def test_aggregates_of_no_rows(dialect: Dialect, expected: list[int | None]) -> None:
    assert [empty(function, dialect).compute_result() for function in FUNCTIONS] == expected


def test_text_is_read_as_a_number_by_sums_in_aws_and_compared_as_text_by_extremes() -> None:
    assert folded("sum", ["1", "2.50"]) == (Decimal, Decimal("3.50"))
    assert folded("avg", ["1", "2"]) == (Decimal, Decimal("1.5"))
    assert folded("max", ["9", "10"]) == (str, "9")
    with pytest.raises(SelectError, match="CAST it to a number"):
        empty("sum").add_value("x")
    with pytest.raises(SelectError, match="leave it out with NULLIF"):
        empty("sum").add_value("")


def test_text_in_a_sum_costs_the_row_in_the_first_engine_and_the_query_today() -> None:
    for dialect, fatal in ((CEPH_2020, False), (CEPH, True)):
        text = r"illegal value for aggregation\(sum\). skipping."
        with pytest.raises(SelectError, match=text) as refused:
            empty("sum", dialect).add_value("1")
        assert refused.value.fatal is fatal


def test_extremes_of_types_that_do_not_compare_are_refused() -> None:
    with pytest.raises(SelectError) as refused:
        folded("min", [1, "x"])
    assert refused.value.s3_code == "InvalidDataType"


def test_rows_are_counted_without_values() -> None:
    counter = empty("count")
    counter.add_rows(5)
    assert counter.compute_result() == 5
    with pytest.raises(TypeError):
        empty("sum").add_rows(1)


def test_average_of_integers_is_a_decimal_in_aws_and_a_float_in_ceph() -> None:
    thirds = Decimal("2.3333333333333333333333333333333333333")
    assert folded("avg", [1, 2, 4]) == (Decimal, thirds)
    assert folded("avg", [1, 2], CEPH) == struct.pack("d", 1.5)
