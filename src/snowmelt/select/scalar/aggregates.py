"""Aggregate accumulators: count, sum, min, max and avg, in row order.

Adding a vector gives exactly the same bits as adding its values one by one. Results therefore do
not depend on block boundaries or on the number of threads. Float sums are compensated (Neumaier's
method).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Context, Decimal, DecimalException
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from snowmelt.jit import jit_kernel
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error
from snowmelt.select.resource_limits import MemoryBudget
from snowmelt.select.scalar.operators import is_less_for_min_max
from snowmelt.select.scalar.order_by import make_sort_key
from snowmelt.select.sql.ast import AggregateExpr
from snowmelt.select.values import (
    DECIMAL_CONTEXT,
    INT_MAX,
    describe_type,
    format_excerpt,
    is_null_or_missing,
    parse_number_text,
    require_int64,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Kernel: TypeAlias = Callable[
        [NDArray[np.float64], NDArray[np.bool_], float, float], tuple[float, float]
    ]
    Numbers: TypeAlias = NDArray[np.int64] | NDArray[np.float64]
    Mask: TypeAlias = NDArray[np.bool_]


@jit_kernel
def _sum_floats_loop(
    data: NDArray[np.float64], null: NDArray[np.bool_], total: float, compensation: float
) -> tuple[float, float]:
    for place in range(len(data)):
        if not null[place]:
            number = data[place]
            grown = total + number
            if abs(total) >= abs(number):
                compensation += (total - grown) + number
            else:
                compensation += (number - grown) + total
            total = grown
    return total, compensation


add_floats: Kernel = _sum_floats_loop
"""Add the non-null numbers in order to a total and its compensation (Neumaier's method)."""


def add_compensated_float(number: float, total: float, compensation: float) -> tuple[float, float]:
    """Add one number. Repeated calls give bit for bit the same result as one call of `add_floats`."""
    grown = total + number
    if abs(total) >= abs(number):
        return grown, compensation + ((total - grown) + number)
    return grown, compensation + ((number - grown) + total)


# Precision for exact sums of 38-digit decimals of similar magnitude.
_EXACT_SUM_CONTEXT = Context(prec=120)
# Memory of a set entry, including the key tuple but not the value.
_DISTINCT_ENTRY_BYTES = 160


class Accumulator:
    """An aggregate over rows that arrive in order."""

    @property
    def accepts_all_numbers(self) -> bool:
        """True if `add_value` accepts any number in the current state."""
        return True

    def add_value(self, value: object) -> None:
        """Add the argument's value in one row. Ignores NULL and MISSING.

        Raises:
            SelectError: If the aggregate does not accept the value. Its state is then unchanged.
        """
        raise NotImplementedError

    def check_value(self, value: object) -> None:
        """Check that `add_value` would accept a value in the current state.

        Raises:
            SelectError: If `add_value` would raise it.
        """

    def add_rows(self, count: int) -> None:
        """Add `count` rows without values. Only `count(*)` supports this."""
        raise TypeError(f"{type(self).__name__} of {count} rows")

    def add_vector(self, data: Numbers, null: Mask) -> None:
        """Add the int64 or float64 values whose `null` flag is False."""
        raise NotImplementedError

    def compute_result(self) -> object:
        """Return the aggregate of the values added so far."""
        raise NotImplementedError


def make_accumulator(
    aggregate: AggregateExpr, dialect: Dialect, budget: MemoryBudget | None = None
) -> Accumulator:
    """Return an empty accumulator. The budget counts the values that DISTINCT retains."""
    accumulator = _ACCUMULATOR_FACTORIES[aggregate.function](dialect)
    return DistinctAccumulator(accumulator, budget) if aggregate.distinct else accumulator


class CountAccumulator(Accumulator):
    """Count of rows or values."""

    def __init__(self, _dialect: Dialect) -> None:
        self._count = 0

    def add_value(self, value: object) -> None:
        """Count a value unless it is NULL or MISSING."""
        self._count += not is_null_or_missing(value)

    def add_rows(self, count: int) -> None:
        """Count rows."""
        self._count += count

    def add_vector(self, data: Numbers, null: Mask) -> None:
        """Count the non-null values."""
        self._count += len(data) - int(np.count_nonzero(null))

    def compute_result(self) -> object:
        """Return the count."""
        return self._count


class SumAccumulator(Accumulator):
    """Sum of numbers. Integers and decimals are exact; float sums are compensated in row order.

    The Ceph dialects convert decimals to floats and add floats without compensation, as Ceph does.
    From the first float on, the total is a float.
    """

    _function_name = "sum"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._count = 0
        self._integer_total = 0
        self._decimal: Decimal | None = None
        self._float: tuple[float, float] | None = None

    def add_value(self, value: object) -> None:
        """Add a number. `aws` also accepts text that is a number."""
        if is_null_or_missing(value):
            return
        number = self._to_number(value)
        if self._dialect.is_ceph:
            self._add_in_ceph(number)
        elif isinstance(number, float):
            self._float = add_compensated_float(number, *(self._float or (0.0, 0.0)))
        elif isinstance(number, Decimal):
            self._decimal = _EXACT_SUM_CONTEXT.add(self._decimal or Decimal(0), number)
        else:
            self._integer_total += number
        self._count += 1

    def check_value(self, value: object) -> None:
        """Check that a value is a number."""
        if not is_null_or_missing(value):
            self._to_number(value)

    def add_vector(self, data: Numbers, null: Mask) -> None:
        """Add the non-null numbers of a vector."""
        present = len(data) - int(np.count_nonzero(null))
        if not present:
            return
        self._count += present
        if self._dialect.is_ceph and (data.dtype == np.float64 or self._float is not None):
            floats: Any = data[~null].astype(np.float64)
            before = float(self._integer_total) if self._float is None else self._float[0]
            # `np.sum` adds pairwise. `accumulate` adds from first to last, as Ceph does.
            with np.errstate(all="ignore"):
                totals = np.add.accumulate(np.concatenate((np.array([before]), floats)))
            self._float = float(totals[-1]), 0.0
        elif data.dtype == np.float64:
            floats = data
            total, lost = add_floats(floats, null, *(self._float or (0.0, 0.0)))
            self._float = float(total), float(lost)
        else:
            self._integer_total += _sum_int64_exactly(data[~null])

    def _compute_unchecked_total(self) -> int | Decimal | float | None:
        """Return the sum without a range check, or None if no value was added."""
        if not self._count:
            return None
        if self._float is not None and self._dialect.is_ceph:
            return self._float[0]
        if self._float is not None:
            total, lost = self._float
            floats = total + lost if math.isfinite(lost) else total
            exact = self._compute_exact_total()
            return floats + float(exact) if exact else floats
        return self._compute_exact_total()

    def compute_result(self) -> object:
        """Return the sum. Without values, it is NULL, or 0 in `ceph-2020`.

        Raises:
            SelectError: If an integer sum exceeds 64 bits (IntegerOverflow).
        """
        total = self._compute_unchecked_total()
        if total is None:
            return 0 if self._dialect is Dialect.CEPH_2020 else None
        return require_int64(total, self._dialect) if isinstance(total, int) else total

    def _add_in_ceph(self, number: int | Decimal | float) -> None:
        if self._float is not None:
            self._float = self._float[0] + float(number), 0.0
        elif isinstance(number, int):
            self._integer_total += number
        else:
            self._float = float(self._integer_total) + float(number), 0.0

    def _compute_exact_total(self) -> int | Decimal:
        if self._decimal is None:
            return self._integer_total
        exact = _EXACT_SUM_CONTEXT.add(self._decimal, Decimal(self._integer_total))
        try:
            return DECIMAL_CONTEXT.plus(exact)
        except DecimalException:
            message = f"{self._function_name} is larger than any DECIMAL"
            raise SelectError("EvaluatorInvalidArguments", message) from None

    def _to_number(self, value: object) -> int | Decimal | float:
        number = parse_number_text(value) if isinstance(value, str) else value
        is_taken = isinstance(number, int | float | Decimal)
        if self._dialect.is_ceph:
            is_taken = is_taken and not isinstance(value, str)
        if isinstance(number, bool) and self._dialect is not Dialect.CEPH_2020:
            is_taken = False
        if not is_taken or not isinstance(number, int | float | Decimal):
            remedy = "leave it out with NULLIF(…, '')" if value == "" else "CAST it to a number"
            message = (
                f"illegal value for aggregation({self._function_name}). skipping. "
                f"{format_excerpt(value)} is {describe_type(value)}; {remedy}"
            )
            raise make_skippable_row_error("InvalidDataType", message, self._dialect)
        return number


def _sum_int64_exactly(data: Any) -> int:
    # Sums of 32-bit halves cannot overflow 64 bits for any vector that fits in memory.
    return (int((data >> 32).sum()) << 32) + int((data & 0xFFFFFFFF).sum())


class AverageAccumulator(SumAccumulator):
    """Sum divided by count. In `aws` integers give a decimal; the Ceph dialects always give a float."""

    _function_name = "avg"

    def compute_result(self) -> object:
        """Return the average, or NULL if no value was added."""
        total = self._compute_unchecked_total()
        if total is None:
            return None
        if isinstance(total, float) or self._dialect.is_ceph:
            return float(total) / self._count
        return DECIMAL_CONTEXT.divide(Decimal(total), Decimal(self._count))


class MinMaxAccumulator(Accumulator):
    """Minimum or maximum. The first of equal values wins."""

    def __init__(self, dialect: Dialect, *, is_max: bool) -> None:
        self._dialect = dialect
        self._is_max = is_max
        self._best: object = None

    @property
    def accepts_all_numbers(self) -> bool:
        """True if the best value so far, if any, is comparable with numbers."""
        return self._best is None or type(self._best) in (int, float, Decimal)

    def add_value(self, value: object) -> None:
        """Compare a value with the best one. NaN is greater than any number."""
        if not is_null_or_missing(value) and self._is_better(value):
            self._best = value

    def check_value(self, value: object) -> None:
        """Check that a value is comparable with the best one."""
        if not is_null_or_missing(value):
            self._is_better(value)

    def _is_better(self, value: object) -> bool:
        best = self._best
        if best is None:
            return True
        smaller, larger = (best, value) if self._is_max else (value, best)
        return is_less_for_min_max(smaller, larger, self._dialect)

    def add_vector(self, data: Numbers, null: Mask) -> None:
        """Add the non-null numbers of a vector."""
        present: Any = data[~null] if null.any() else data
        numbers = present
        if present.dtype == np.float64 and np.isnan(present).any():
            numbers = present[~np.isnan(present)]
        if not len(present):
            return
        if not len(numbers) or (self._is_max and len(numbers) < len(present)):
            self.add_value(math.nan)
        else:
            # argmin and argmax return the first of equal numbers (0.0 and -0.0).
            place = numbers.argmax() if self._is_max else numbers.argmin()
            self.add_value(numbers[place].item())

    def compute_result(self) -> object:
        """Return the minimum or maximum.

        Without values, it is NULL. In `ceph-2020` it is the initial value of the comparison: -INT_MAX for
        max, INT_MAX for min.
        """
        if self._best is None and self._dialect is Dialect.CEPH_2020:
            return -INT_MAX if self._is_max else INT_MAX
        return self._best


class DistinctAccumulator(Accumulator):
    """Wrapper that passes each distinct value once to another accumulator."""

    def __init__(self, inner: Accumulator, budget: MemoryBudget | None) -> None:
        self._inner = inner
        self._budget = budget
        self._seen_keys: set[object] = set()

    @property
    def accepts_all_numbers(self) -> bool:
        """True if the inner accumulator accepts all numbers."""
        return self._inner.accepts_all_numbers

    def add_value(self, value: object) -> None:
        """Add a value unless an equal one was added before."""
        if is_null_or_missing(value):
            return
        key = make_sort_key(value)
        if key in self._seen_keys:
            return
        if self._budget is not None:
            self._budget.reserve(_DISTINCT_ENTRY_BYTES + sys.getsizeof(value))
        self._inner.add_value(value)
        self._seen_keys.add(key)

    def check_value(self, value: object) -> None:
        """Check that the inner accumulator would accept a value."""
        self._inner.check_value(value)

    def add_vector(self, data: Numbers, null: Mask) -> None:
        """Add the distinct values of a vector in order."""
        present: Any = data[~null]
        _, first = np.unique(present, return_index=True)
        first.sort()
        for value in present[first].tolist():
            self.add_value(value)

    def compute_result(self) -> object:
        """Return the aggregate of the distinct values."""
        return self._inner.compute_result()


_ACCUMULATOR_FACTORIES: dict[str, Callable[[Dialect], Accumulator]] = {
    "count": CountAccumulator,
    "sum": SumAccumulator,
    "avg": AverageAccumulator,
    "min": lambda dialect: MinMaxAccumulator(dialect, is_max=False),
    "max": lambda dialect: MinMaxAccumulator(dialect, is_max=True),
}
