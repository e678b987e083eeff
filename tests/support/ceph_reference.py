"""Independent implementation of the Ceph dialects of S3 Select, in plain Python over rows.

Uses no code of the engine. Statements are trees whose nodes can return their SQL and their value.
The rules come from the pages of Ceph's two engines and from docs/explanation/decisions/0043.
"""

from __future__ import annotations

import calendar
import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

OLD, NEW = "ceph-2020", "ceph"
LEAST, MOST = -(2**63), 2**63 - 1
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905


class Wrong(Exception):
    """Exception: an expression has no value in a row."""


def check(condition: object) -> None:
    if not condition:
        raise Wrong


# --- values


def is_number(value: object) -> bool:
    return type(value) in (int, float)


def fitting(number: int) -> int:
    check(LEAST <= number <= MOST)
    return number


def shown(value: object, dialect: str) -> str:
    if value is None:
        return "null" if dialect == NEW else ""
    if isinstance(value, bool):
        return str(value).lower() if dialect == NEW else str(int(value))
    if isinstance(value, float):
        return format(value, ".17g")
    if isinstance(value, dt.datetime):
        if dialect == NEW:
            micros = f".{value.microsecond:06}" if value.microsecond else ""
            zone = "+00:00" if value.fold else "Z"
            return f"{value:%Y-%m-%dT%H:%M:%S}{micros}{zone}"
        return f"{value.year:04}-{_MONTHS[value.month - 1]}-{value:%d %H:%M:%S}"
    return str(value)


def compared(sign: str, left: Any, right: Any, dialect: str) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        check(dialect == OLD or sign in {"=", "<>"})
        left = int(left) if isinstance(left, bool) else left
        right = int(right) if isinstance(right, bool) else right
    if isinstance(left, str) and isinstance(right, str):
        left, right = left.encode(), right.encode()
    else:
        both_times = isinstance(left, dt.datetime) and isinstance(right, dt.datetime)
        check((is_number(left) and is_number(right)) or both_times)
    answers: dict[str, bool] = {
        "=": left == right, "<>": left != right, "<": left < right,
        "<=": left <= right, ">": left > right, ">=": left >= right,
    }  # fmt: skip
    return answers[sign]


def truth_of(value: object) -> bool | None:
    if value is None:
        return None
    check(isinstance(value, bool) or is_number(value))
    return bool(value)


def calculated(sign: str, left: Any, right: Any, dialect: str) -> object:
    if left is None or right is None:
        return None
    if dialect == OLD:
        left = int(left) if isinstance(left, bool) else left
        right = int(right) if isinstance(right, bool) else right
    check(is_number(left) and is_number(right))
    whole = isinstance(left, int) and isinstance(right, int)
    if sign in "/%":
        check(right != 0)
    if sign == "%":
        check(isinstance(right, int))
        if whole:
            return left - right * _towards_zero(left, right)
        check(math.isfinite(left))
        return math.fmod(math.trunc(left), right)
    if sign == "^":
        return _powered(left, right, whole)
    if sign == "/":
        return fitting(_towards_zero(left, right)) if whole else float(left) / float(right)
    if not whole:
        left, right = float(left), float(right)
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return fitting(result) if whole else result


def _towards_zero(left: int, right: int) -> int:
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _powered(left: float, right: float, whole: bool) -> object:
    if whole and right >= 0:
        check(abs(left) < 2 or right < 64)
        return fitting(left ** (right if abs(left) > 1 else right % 2 + 2 * (right > 0)))
    try:
        result = math.pow(left, right)
    except (ValueError, OverflowError):
        raise Wrong from None
    return math.trunc(result) if whole else result


def as_int(value: Any, dialect: str) -> int | None:
    if value is None or isinstance(value, int):
        return None if value is None else int(value)
    if isinstance(value, float):
        check(math.isfinite(value) and LEAST <= value < 2.0**63)
        return math.trunc(value)
    check(isinstance(value, str))
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", value)
    if dialect == OLD:
        return max(LEAST, min(int(found[1]), MOST)) if found else 0
    check(found and found.end() == len(value))
    assert found is not None
    return fitting(int(found[1]))


def as_float(value: Any, dialect: str) -> float | None:
    if value is None or isinstance(value, int | float):
        return None if value is None else float(value)
    check(isinstance(value, str))
    text = value.lstrip(" \t\n\v\f\r")
    longest = next((n for n in range(len(text), 0, -1) if _is_float(text[:n])), 0)
    if dialect == OLD:
        return _float(text[:longest]) if longest else 0.0
    check(longest and longest == len(text))
    number = _float(text)
    check(math.isfinite(number) or text[-1].isalpha())
    return number


def _float(text: str) -> float:
    return float.fromhex(text) if text.lstrip("+-").lower().startswith("0x") else float(text)


def _is_float(text: str) -> bool:
    try:
        _float(text)
    except ValueError:
        return False
    return "_" not in text and text == text.strip() and text.isascii()


def as_time(text: Any, dialect: str) -> dt.datetime | None:
    """Parse a timestamp: in the first engine's form, or in ISO 8601 with or without Z.

    `fold` is 1 if the offset is unknown.
    """
    if text is None or isinstance(text, dt.datetime):
        return text
    check(isinstance(text, str))
    old = r"(\d{4})[:-]*(\d\d)[:-]*(\d\d)[:-]*[T ]?(\d\d)[:-]*(\d\d)[:-]*(\d\d)"
    new = r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)Z?"
    found = re.fullmatch(old, text) if dialect == OLD else None
    unknown = found is None and not text.endswith("Z")
    found = found or re.fullmatch(new, text)
    check(found)
    assert found is not None
    try:
        year, month, day, hour, minute, second = map(int, found.groups())
        return dt.datetime(year, month, day, hour, minute, second, fold=int(unknown))
    except ValueError:
        raise Wrong from None


def is_like(text: str, pattern: str, escape: str) -> bool:
    """Match a LIKE pattern by converting each character to a regular expression."""
    built, signs = "", list(pattern)
    while signs:
        sign = signs.pop(0)
        if sign == escape:
            check(signs)
            built += re.escape(signs.pop(0))
        elif sign == "[":
            check("]" in signs)
            inside = "".join(signs[: signs.index("]")])
            del signs[: len(inside) + 1]
            body = inside.removeprefix("^")
            check(body and not set(body) & {"%", "_", "[", "\\", escape})
            check(not (signs and signs[0] in "*+?{"))
            for first, last in re.findall(r"(.)-(.)", body):
                check(first <= last)
            check(not re.search(r".-.-", body))
            built += f"[{'^' if inside != body else ''}{body}]"
        else:
            built += {"%": ".*", "_": "."}.get(sign, re.escape(sign))
    return re.fullmatch(built, text, re.DOTALL) is not None


# --- trees


@dataclass
class Node:
    """Expression with its SQL and its value for a row of texts."""

    sql: str
    of: Callable[[Any, str], Any]

    def value(self, row: list[str], dialect: str) -> Any:
        return self.of(row, dialect)


def column(place: int) -> Node:
    def of(row: Any, dialect: Any) -> Any:
        if place >= len(row):
            check(dialect == NEW)
            return None
        return None if dialect == NEW and not row[place] else row[place]

    return Node(f"_{place + 1}", of)


def literal(value: object) -> Node:
    if isinstance(value, str):
        return Node(f'"{value}"', lambda _row, _dialect: value)
    return Node("null" if value is None else repr(value), lambda _row, _dialect: value)


def chain(first: Node, rest: list[tuple[str, Node]]) -> Node:
    """Build arithmetic without parentheses: * / % ^ first, then + -, each from left to right."""

    def of(row: Any, dialect: Any) -> object:
        sums = [("+", first.value(row, dialect))]
        for sign, node in rest:
            value = node.value(row, dialect)
            if sign in "+-":
                sums.append((sign, value))
            else:
                sums[-1] = (sums[-1][0], calculated(sign, sums[-1][1], value, dialect))
        total = sums[0][1]
        for sign, value in sums[1:]:
            total = calculated(sign, total, value, dialect)
        return total

    return Node("(" + first.sql + "".join(f" {s} {n.sql}" for s, n in rest) + ")", of)


def comparison(sign: str, left: Node, right: Node) -> Node:
    return Node(
        f"({left.sql} {sign} {right.sql})",
        lambda row, d: compared(
            {"==": "=", "!=": "<>"}.get(sign, sign), left.value(row, d), right.value(row, d), d
        ),
    )


def logic(first: Node, rest: list[tuple[str, Node]]) -> Node:
    """Build AND and OR without parentheses: AND first; in the first engine, left to right."""

    def joined(sign: str, left: Any, right: Any, row: Any, dialect: Any) -> bool | None:
        known = truth_of(left)
        decisive = sign == "or"
        if known is decisive:
            return decisive
        other = truth_of(right(row, dialect))
        if other is decisive:
            return decisive
        return None if known is None or other is None else not decisive

    def of(row: Any, dialect: Any) -> Any:
        if dialect == OLD:
            value = first.value(row, dialect)
            for sign, node in rest:
                value = joined(sign, value, node.value, row, dialect)
            return value
        groups = [[first]]
        for sign, node in rest:
            if sign == "or":
                groups.append([])
            groups[-1].append(node)

        def all_of(nodes: list[Node]) -> Callable[[Any, Any], Any]:
            def value(row: Any, dialect: Any) -> object:
                found = nodes[0].value(row, dialect)
                for node in nodes[1:]:
                    found = joined("and", found, node.value, row, dialect)
                return found

            return value

        found = all_of(groups[0])(row, dialect)
        for group in groups[1:]:
            found = joined("or", found, all_of(group), row, dialect)
        return found

    return Node("(" + first.sql + "".join(f" {s} {n.sql}" for s, n in rest) + ")", of)


def negation(inner: Node) -> Node:
    def of(row: Any, dialect: Any) -> bool | None:
        known = truth_of(inner.value(row, dialect))
        return None if known is None else not known

    return Node(f"(not {inner.sql})", of)


def between(value: Node, low: Node, high: Node) -> Node:
    def of(row: Any, dialect: Any) -> bool | None:
        middle = value.value(row, dialect)
        above = compared(">=", middle, low.value(row, dialect), dialect)
        if above is False:
            return False
        below = compared("<=", middle, high.value(row, dialect), dialect)
        if below is False:
            return False
        return None if above is None or below is None else True

    return Node(f"({value.sql} between {low.sql} and {high.sql})", of)


def within(value: Node, options: list[Node]) -> Node:
    def of(row: Any, dialect: Any) -> bool | None:
        wanted, unknown = value.value(row, dialect), False
        for option in options:
            answer = compared("=", wanted, option.value(row, dialect), dialect)
            if answer:
                return True
            unknown = unknown or answer is None
        return None if unknown else False

    return Node(f"({value.sql} in ({', '.join(each.sql for each in options)}))", of)


def like(value: Node, pattern: str, escape: str | None) -> Node:
    def of(row: Any, dialect: Any) -> bool | None:
        text = value.value(row, dialect)
        if text is None:
            return None
        check(isinstance(text, str))
        return is_like(text, pattern, escape or "\\")

    clause = f' escape "{escape}"' if escape else ""
    return Node(f'({value.sql} like "{pattern}"{clause})', of)


def null(value: Node, *, negated: bool) -> Node:
    words = "is not null" if negated else "is null"
    return Node(
        f"({value.sql} {words})", lambda row, d: (value.value(row, d) is None) is not negated
    )


def case(condition: Node, then: Node, other: Node) -> Node:
    def of(row: Any, dialect: Any) -> object:
        chosen = then if truth_of(condition.value(row, dialect)) else other
        return chosen.value(row, dialect)

    return Node(f"(case when {condition.sql} then {then.sql} else {other.sql} end)", of)


def coalesce(*nodes: Node) -> Node:
    def of(row: Any, dialect: Any) -> object:
        for node in nodes:
            found = node.value(row, dialect)
            if found is not None:
                return found
        return None

    return Node(f"coalesce({', '.join(node.sql for node in nodes)})", of)


def nullif(left: Node, right: Node) -> Node:
    def of(row: Any, dialect: Any) -> object:
        first, second = left.value(row, dialect), right.value(row, dialect)
        kinds = {type(first), type(second)}
        if first is None or second is None or not (len(kinds) == 1 or kinds == {int, float}):
            return first
        return None if compared("=", first, second, dialect) else first

    return Node(f"nullif({left.sql}, {right.sql})", of)


def call(name: str, *nodes: Node) -> Node:
    """Make a call of a function that returns NULL if an argument is NULL."""

    def of(row: Any, dialect: Any) -> Any:
        found = [node.value(row, dialect) for node in nodes]
        return None if None in found else _FUNCTIONS[name](dialect, *found)

    return Node(f"{name}({', '.join(node.sql for node in nodes)})", of)


def dated(name: str, part: str, *nodes: Node) -> Node:
    """Make a call of a date function with a date part."""

    def of(row: Any, dialect: Any) -> Any:
        found = [node.value(row, dialect) for node in nodes]
        return None if None in found else _DATED[name](part, *found)

    written = ", ".join(node.sql for node in nodes)
    if name == "extract" and part != "week":
        return Node(f"extract({part} from {written})", of)
    return Node(f'{name}("{part}", {written})', of)


def _substring(_dialect: Any, text: Any, start: Any, length: Any = None) -> str:
    check(isinstance(text, str) and isinstance(start, int))
    check(length is None or (isinstance(length, int) and length >= 0))
    last = len(text) if length is None else start + length - 1
    return "".join(sign for at, sign in enumerate(text, 1) if max(start, 1) <= at <= last)


def _substr(dialect: Any, text: Any, start: Any, length: Any = None) -> str:
    if dialect == NEW:
        return _substring(dialect, text, start, length)
    found = _substring(dialect, text, start, length)
    if start == 0:
        return ""
    check(0 < start <= len(text))
    check(length is None or len(found) == length)
    return found


def _text(
    function: Callable[[Any], Any] | Callable[[Sized], int] | Callable[[str], str],
) -> Callable[[Any, Any], Any]:
    def of(_dialect: Any, text: Any) -> Any:
        check(isinstance(text, str))
        return function(text)

    return of


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": lambda dialect, value: as_int(_no_time(value), dialect),
    "float": lambda dialect, value: as_float(_no_time(value), dialect),
    "string": lambda dialect, value: (
        str(value).lower() if isinstance(value, bool) else shown(value, dialect)
    ),
    "timestamp": lambda _dialect, value: as_time(value, OLD),
    "to_timestamp": lambda dialect, value: as_time(value, dialect),
    "char_length": _text(len),
    "lower": _text(str.lower),
    "upper": _text(str.upper),
    "trim": _text(lambda text: text.strip(" ")),
    "substring": _substring,
    "substr": _substr,
}


def _no_time(value: Any) -> Any:
    check(not isinstance(value, dt.datetime))
    return value


def _time(value: Any) -> Any:
    check(isinstance(value, dt.datetime))
    return value


def _extract(part: Any, moment: Any) -> Any:
    moment = _time(moment)
    return moment.isocalendar()[1] if part == "week" else getattr(moment, part)


def _added(part: Any, count: Any, moment: Any, *, last_stays: bool) -> Any:
    moment = _time(moment)
    check(isinstance(count, int))
    if part == "day":
        return (moment + dt.timedelta(days=count)).replace(fold=moment.fold)
    months = moment.year * 12 + moment.month - 1 + count * (12 if part == "year" else 1)
    year, month = divmod(months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    was_last = moment.day == calendar.monthrange(moment.year, moment.month)[1]
    day = last if last_stays and was_last else min(moment.day, last)
    return moment.replace(year=year, month=month + 1, day=day)


def _calendar_difference(part: Any, first: Any, last: Any) -> Any:
    first, last = _time(first), _time(last)
    if part == "year":
        return last.year - first.year
    if part == "month":
        return (last.year - first.year) * 12 + last.month - first.month
    if part == "day":
        return (last.date() - first.date()).days
    return int((last - first) / dt.timedelta(hours=1))


def _passed(part: Any, first: Any, last: Any) -> Any:
    first, last = _time(first), _time(last)
    if first > last:
        return -_passed(part, last, first)
    if part == "day":
        return (last - first).days
    months = (last.year - first.year) * 12 + last.month - first.month
    months -= (last.day, last.time()) < (first.day, first.time())
    return months if part == "month" else months // 12


_DATED: dict[str, Callable[..., Any]] = {
    "extract": _extract,
    "dateadd": lambda part, count, moment: _added(part, count, moment, last_stays=True),
    "date_add": lambda part, count, moment: _added(part, count, moment, last_stays=False),
    "datediff": _calendar_difference,
    "date_diff": _passed,
}


# --- statements


def passing(rows: Any, where: Any, dialect: Any) -> Iterator[Any]:
    """Yield the selected rows, and None for each dropped row."""
    for row in rows:
        try:
            if where is None or truth_of(where.value(row, dialect)) is True:
                yield row
        except Wrong:
            yield None


class Ended(Exception):
    """Error that ends the query."""


class Drops:
    """Counter of dropped rows.

    Current Ceph fails at the first row, Ceph's first engine at the 100th.
    """

    def __init__(self, dialect: str) -> None:
        self.left = 1 if dialect == NEW else 100

    def drop(self) -> None:
        self.left -= 1
        if not self.left:
            raise Ended


def selected(
    values: list[Node], where: Any, rows: list[list[str]], dialect: str, limit: Any = None
) -> tuple[str, bool]:
    """Return the output of `select values from … where …`, and True if it ends with an error."""
    drops, out, count = Drops(dialect), "", 0
    after = ",\n" if dialect == OLD else "\n"
    try:
        for row in rows:
            if count == limit:
                break
            try:
                if where is not None and truth_of(where.value(row, dialect)) is not True:
                    continue
                found = [each.value(row, dialect) for each in values]
            except Wrong:
                drops.drop()
                continue
            out += ",".join(shown(each, dialect) for each in found) + after
            count += 1
    except Ended:
        return out, True
    return out, False


def folded(
    aggregates: list[tuple[Any, Any]], where: Any, rows: list[list[str]], dialect: str
) -> tuple[str, bool]:
    """Return the output of aggregates (pairs of name and argument), and True if the query fails."""
    drops = Drops(dialect)
    kept: list[list[Any]] = [[] for _ in aggregates]
    try:
        for row in rows:
            try:
                if where is not None and truth_of(where.value(row, dialect)) is not True:
                    continue
                found = [None if a is None else a.value(row, dialect) for _, a in aggregates]
                for (name, _), value, before in zip(aggregates, found, kept, strict=True):
                    _check_taken(name, value, before, dialect)
            except Wrong:
                drops.drop()
                continue
            for value, before in zip(found, kept, strict=True):
                before.append(value)
        results = [
            _result(name, argument, values, dialect)
            for (name, argument), values in zip(aggregates, kept, strict=True)
        ]
    except (Ended, Wrong):
        return "", True
    text = ",".join(shown(each, dialect) for each in results)
    return text + "," * (dialect == OLD), False


def _check_taken(name: Any, value: Any, before: list[Any], dialect: str) -> None:
    if value is None or name == "count":
        return
    if name in {"sum", "avg"}:
        check(is_number(value) or (dialect == OLD and isinstance(value, bool)))
        return
    there = [each for each in before if each is not None]
    if there:
        compared("<", there[0], value, dialect)


def _result(name: Any, argument: Any, values: list[Any], dialect: str) -> Any:
    there = [each for each in values if each is not None]
    if name == "count":
        return len(values) if argument is None or dialect == OLD else len(there)
    if name in {"min", "max"}:
        if not there:
            return None if dialect == NEW else (MOST if name == "min" else -MOST)
        best = there[0]
        for value in there[1:]:
            if compared("<" if name == "min" else ">", value, best, dialect):
                best = value
        return best
    if not there:
        return None if dialect == NEW or name == "avg" else 0
    total: float = 0
    for value in there:
        total = total + int(value) if isinstance(value, bool) else total + value
    if name == "avg":
        return float(total) / len(there)
    return fitting(total) if isinstance(total, int) else total


# --- objects


def csv_rows(text: str, dialect: str) -> tuple[list[list[str]], bool]:
    """Split text into rows with the format of Ceph's page: comma, newline, quote and backslash.

    Returns:
        The rows, and True if a quote is open at the end, which current Ceph rejects.
    """
    rows: list[list[str]] = []
    row: list[str] = []
    field, inside, at = "", False, 0
    if dialect == NEW:
        text = text.removeprefix("\ufeff")

    def ends_at(at: int) -> int:
        """Return the length of the row delimiter at a position. In current Ceph, quotes hide it."""
        if inside and dialect == NEW:
            return 0
        if text[at : at + 1] == "\n":
            return 1
        return 2 if dialect == NEW and text[at : at + 2] == "\r\n" else 0

    began = False
    while at < len(text):
        sign = text[at]
        if ends_at(at):
            rows.append([*row, field])
            at += ends_at(at)
            row, field, inside, began = [], "", False, False
            continue
        began = True
        if sign == "\\":
            if not ends_at(at + 1):
                field += text[at + 1 : at + 2]
                at += 1
        elif sign == '"':
            inside = not inside
            field += '"' * (dialect == OLD)
        elif sign == "," and not inside:
            row, field = [*row, field], ""
        else:
            field += sign
        at += 1
    if inside and dialect == NEW:
        return rows, True
    if began:
        rows.append([*row, field])
    return rows, False


def json_rows(document: object, path: list[str]) -> list[object]:
    """Return the rows at FROM's path. Arrays on the path are expanded."""
    if path and isinstance(document, list):
        return [row for item in document for row in json_rows(item, path)]
    if path and isinstance(document, dict):
        fits = [name for name in document if name.lower() == path[0].lower()]
        name = path[0] if path[0] in document else (fits[0] if fits else None)
        return [] if name is None else json_rows(document[name], path[1:])
    if path:
        return []
    return document if isinstance(document, list) else [document]
