"""Generates docs/reference/select.md's tables of features per dialect."""

from __future__ import annotations

from snowmelt.select import errors
from snowmelt.select.dialect import Dialect
from support.dialect_support import (
    DialectFeature,
    FeatureStatus,
    FeatureTopic,
    list_features,
)

_HEADINGS = {
    FeatureTopic.CLAUSE: "Clauses",
    FeatureTopic.LITERAL: "Literals and names",
    FeatureTopic.OPERATOR: "Operators",
    FeatureTopic.AGGREGATE: "Aggregate functions",
    FeatureTopic.FUNCTION: "Functions",
    FeatureTopic.TYPE: "Types of CAST",
    FeatureTopic.EXTRACT: "Date parts of EXTRACT",
    FeatureTopic.DATE_ADD: "Date parts of DATE_ADD, DATE_DIFF, DATEADD and DATEDIFF",
    FeatureTopic.FORMAT_SYMBOL: "Format symbols of TO_STRING",
    FeatureTopic.INPUT: "Elements of InputSerialization",
    FeatureTopic.OUTPUT: "Elements of OutputSerialization",
    FeatureTopic.REQUEST: "Other elements of a request",
}
_STATUSES = {
    FeatureStatus.EXACT: "yes",
    FeatureStatus.ADDED: "extension",
    FeatureStatus.DIFFERS: "differs",
    FeatureStatus.REJECTED: "no",
}
# Syntax and result of each function.
FUNCTIONS = {
    "add": ("add(number, number)", "the sum"),
    "cast": ("cast(value AS type)", "the value converted to a type"),
    "char_length": ("char_length(string)", "the number of characters"),
    "character_length": ("character_length(string)", "the number of characters"),
    "coalesce": ("coalesce(value, …)", "the first argument that is neither NULL nor MISSING"),
    "date_add": ("date_add(part, count, timestamp)", "the timestamp plus a number of date parts"),
    "date_diff": ("date_diff(part, start, end)", "the number of whole date parts between two timestamps"),
    "dateadd": ("dateadd(part, count, timestamp)", "as date_add; the part can be quoted"),
    "datediff": ("datediff(part, start, end)", "as date_diff; the part can be quoted"),
    "engine_version": ("engine_version()", "the version of Snowmelt"),
    "extract": ("extract(part FROM timestamp)", "one part of a timestamp as an integer"),
    "float": ("float(value)", "the value as a float"),
    "int": ("int(value)", "the value as an integer"),
    "lower": ("lower(string)", "the string in lower case"),
    "nullif": ("nullif(value, value)", "NULL if both are equal, otherwise the first"),
    "string": ("string(value)", "the value as a string"),
    "substr": ("substr(string, start[, length])", "a part of the string; the first character is 1"),
    "substring": ("substring(string, start[, length]) or substring(string FROM start [FOR length])", "a part of the string; the first character is 1"),
    "timestamp": ("timestamp(string)", "the timestamp that the string represents"),
    "to_bool": ("to_bool(value)", "the value as a boolean"),
    "to_string": ("to_string(timestamp, format)", "the timestamp as a string ([symbols](#format-symbols-of-to_string))"),
    "to_timestamp": ("to_timestamp(string)", "the timestamp that the string represents"),
    "trim": ("trim([[LEADING \\| TRAILING \\| BOTH] [characters] FROM] string)", "the string without blanks, or the given characters, at its ends"),
    "upper": ("upper(string)", "the string in upper case"),
    "utcnow": ("utcnow()", "the time of the request"),
    "version": ("version()", "the version of Snowmelt"),
}  # fmt: skip
_CODE_GROUPS = {
    "Errors of syntax": errors._SYNTAX_CODES,
    "Errors of evaluation": errors._EVALUATION_CODES,
    "Errors of the request, the object and limits": errors._OTHER_CODES,
}


def table() -> str:
    """Return the generated part of the page."""
    parts: list[str] = []
    for topic, heading in _HEADINGS.items():
        parts += [f"## {heading}", ""]
        if topic is FeatureTopic.FUNCTION:
            parts += ["| Syntax | Returns |", "| --- | --- |"]
            parts += [f"| `{syntax}` | {returns} |" for syntax, returns in FUNCTIONS.values()]
            parts.append("")
        features = list_features(topic)
        has_examples = any(each.example for each in features)
        head = ["Name", *map(str, Dialect), *(["Example", "Result"] * has_examples), "Note"]
        parts += [_row(head), "|" + " --- |" * len(head)]
        parts += [_row(_cells(each, has_examples=has_examples)) for each in features]
        parts.append("")
    parts += ["## Error codes", ""]
    parts += [
        (
            "In `ceph` and `ceph-2020` an error of syntax has the code `UnsupportedSyntax`, and one of "
            "evaluation `ProcessingTimeError`. The HTTP status is 400 unless given."
        ),
        "",
    ]
    for heading, codes in _CODE_GROUPS.items():
        parts += [f"### {heading}", "", ", ".join(map(_code, sorted(codes))) + ".", ""]
    return "\n".join(parts)


def _code(code: str) -> str:
    status = errors._HTTP_STATUS.get(code, 400)
    return f"`{code}`" if status == 400 else f"`{code}` ({status})"


def _cells(feature: DialectFeature, *, has_examples: bool) -> list[str]:
    cells = [_quote(feature.name), *(_STATUSES[feature.status(each)] for each in Dialect)]
    if has_examples:
        cells += [_quote(feature.example) if feature.example else "", _results(feature)]
    return [*cells, feature.note.replace("|", "\\|")]


def _results(feature: DialectFeature) -> str:
    if not feature.expected_outputs:
        return ""
    found = {str(each): _result(feature.expected_output(each) or "") for each in Dialect}
    if len(set(found.values())) == 1:
        return found[Dialect.AWS]
    by_result: dict[str, list[str]] = {}
    for dialect, result in found.items():
        by_result.setdefault(result, []).append(dialect)
    return "; ".join(f"{', '.join(dialects)}: {result}" for result, dialects in by_result.items())


def _result(text: str) -> str:
    if text.startswith("!"):
        return f"error {text[1:]}"
    return _quote(text) if text else "(empty)"


def _quote(text: str) -> str:
    fence = "``" if "`" in text else "`"
    blank = " " if "`" in text else ""
    return f"{fence}{blank}{text}{blank}{fence}".replace("|", "\\|")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
