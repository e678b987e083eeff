"""Functions of texts, by columns, where Arrow gives what Python gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.catalog.pipe_syntax import Literal
from snowmelt.ingest.rows.arithmetic import Undone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from snowmelt.catalog.pipe_syntax import Call, Expression
    from snowmelt.ingest.rows.arithmetic import Doubting, Vector


def of_texts(work: Doubting, call: Call, given: Sequence[Vector]) -> pa.Array:
    """Return what a function of texts gives.

    Raises:
        Undone: The arguments are not such that Arrow's answer is sure.
    """
    if call.name in {"||", "CONCAT"}:
        return pc.binary_join_element_wise(*(each.texts() for each in given), "")
    text = given[0].texts()
    if call.name in {"LOWER", "UPPER"}:
        # Python knows more letters than two of a kind.
        work.doubt(pc.invert(pc.string_is_ascii(text)))
    return _CALLS[call.name](text, call.arguments[1:])


def count_of(expression: Expression) -> int:
    """Return a constant whole number.

    Raises:
        Undone: It is none.
    """
    if isinstance(expression, Literal) and type(expression.value) is int:
        return expression.value
    raise Undone


def _text_of(expression: Expression) -> str:
    if isinstance(expression, Literal) and isinstance(expression.value, str):
        return expression.value
    raise Undone


def _replaced(text: pa.Array, constants: Sequence[Expression]) -> pa.Array:
    old, new = map(_text_of, constants)
    if not old:
        raise Undone
    return pc.replace_substring(text, old, new)


def _part(text: pa.Array, constants: Sequence[Expression]) -> pa.Array:
    first, *length = map(count_of, constants)
    if first < 0:
        raise Undone
    begin = max(first - 1, 0)
    end = begin + max(length[0], 0) if length else None
    return pc.utf8_slice_codeunits(text, begin, end)


_CALLS: dict[str, Callable[[pa.Array, Sequence[Expression]], pa.Array]] = {
    "LENGTH": lambda text, _: pc.utf8_length(text).cast(pa.int64()),
    "LOWER": lambda text, _: pc.ascii_lower(text),
    "LTRIM": lambda text, _: pc.utf8_ltrim(text, " "),
    "REPLACE": _replaced,
    "RTRIM": lambda text, _: pc.utf8_rtrim(text, " "),
    "SUBSTR": _part,
    "SUBSTRING": _part,
    "TRIM": lambda text, _: pc.utf8_trim(text, " "),
    "UPPER": lambda text, _: pc.ascii_upper(text),
}
