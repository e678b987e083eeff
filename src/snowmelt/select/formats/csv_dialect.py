"""CSV parsing rules: delimiters, quoting and escaping for a dialect and request.

Every CSV reader (compiled tokenizer, state machine, block cutter) follows one `CsvRules` instance.
The rules are specified in docs/explanation/decisions/0013-select-csv.md.
"""

from __future__ import annotations

from snowmelt.kernels.csv_tokenizer import CsvRules
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.request import CsvInput

MAX_DELIMITER_BYTES = 16


def make_csv_rules(
    options: CsvInput, dialect: Dialect, *, has_scan_range: bool = False
) -> CsvRules:
    """Return the CSV rules of a request; `has_scan_range` is True if it has a ScanRange.

    Raises:
        SelectError: If delimiters are ambiguous, or if a ScanRange is combined with quoted record
            delimiters.
    """
    if has_scan_range and options.quoted_record_delimiter:
        raise SelectError(
            "UnsupportedScanRangeInput",
            "A ScanRange needs records that end at every record delimiter; it cannot be combined "
            "with AllowQuotedRecordDelimiter.",
        )
    _check_delimiters(options)
    aws = dialect is Dialect.AWS
    keeps = dialect is Dialect.CEPH_2020
    doubling = options.quote == options.escape
    # Current Ceph treats quoted record delimiters as data. A scan range cannot support that.
    quoted = options.quoted_record_delimiter or (dialect is Dialect.CEPH and not has_scan_range)
    others = options.field_delimiter + options.quote + options.escape + options.comment
    return CsvRules(
        record=options.record_delimiter,
        field=options.field_delimiter,
        quote=options.quote,
        escape=b"" if doubling or (aws and not options.quote) else options.escape,
        comment=options.comment,
        quotes_anywhere=not aws,
        keeps_quotes=keeps,
        escapes_anywhere=not aws,
        doubles=doubling and not keeps,
        quoted_records=quoted and bool(options.quote),
        open_quote_fails=not keeps,
        drops_return=options.record_delimiter == b"\n" and not keeps and b"\r" not in others,
        skips_blank=aws,
        # Only current Ceph reads an empty field as NULL.
        empty_is_null=dialect is Dialect.CEPH,
        skips_byte_order_mark=not keeps,
        validates_utf8=aws,
    )


def _check_delimiters(options: CsvInput) -> None:
    record, field = options.record_delimiter, options.field_delimiter
    if not record or not field:
        raise _invalid_csv_input_error("RecordDelimiter and FieldDelimiter cannot be empty")
    others = {
        "FieldDelimiter": field,
        "QuoteCharacter": options.quote,
        "QuoteEscapeCharacter": options.escape,
    }
    for name, text in {**others, "RecordDelimiter": record, "Comments": options.comment}.items():
        if len(text) > MAX_DELIMITER_BYTES:
            raise _invalid_csv_input_error(f"{name} is longer than {MAX_DELIMITER_BYTES} bytes")
    for name, text in others.items():
        # Record ends must be recognizable without reading the bytes before them.
        if record in text or any(record.startswith(text[-size:]) for size in range(1, len(text))):
            raise _invalid_csv_input_error(f"RecordDelimiter must not start inside {name}")
        if text and text in record and name != "FieldDelimiter":
            raise _invalid_csv_input_error(f"RecordDelimiter may not contain {name}")
    for name in ("QuoteCharacter", "QuoteEscapeCharacter"):
        if others[name] and others[name] in field:
            raise _invalid_csv_input_error(f"FieldDelimiter may not contain {name}")


def _invalid_csv_input_error(reason: str) -> SelectError:
    return SelectError("InvalidRequestParameter", f"Cannot read the CSV input: {reason}.")
