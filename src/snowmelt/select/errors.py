"""Errors of S3 Select: SelectObjectContent error codes, HTTP statuses and the row error budget."""

from __future__ import annotations

from snowmelt.errors import UserError
from snowmelt.select.dialect import Dialect

MAX_ROW_ERRORS = 100
"""How many rows may be dropped for their errors before the query ends; the 100th ends it."""

_HTTP_STATUS = {
    "UnauthorizedAccess": 401,
    "NoSuchKey": 404,
    "NoSuchBucket": 404,
    "InternalError": 500,
    "Busy": 503,
}


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYNTAX_CODES = _split_names(
    """
    LexerInvalidChar LexerInvalidOperator LexerInvalidLiteral LexerInvalidIONLiteral
    ParseExpectedDatePart ParseExpectedKeyword ParseExpectedTokenType ParseExpected2TokenTypes
    ParseExpectedNumber ParseExpectedRightParenBuiltinFunctionCall
    ParseExpectedLeftParenBuiltinFunctionCall ParseExpectedLeftParenAfterCast
    ParseExpectedLeftParenValueConstructor ParseExpectedArgumentDelimiter ParseExpectedTypeName
    ParseExpectedWhenClause ParseExpectedExpression ParseExpectedMember ParseExpectedIdentForAlias
    ParseExpectedIdentForAt ParseExpectedIdentForGroupName ParseMissingIdentAfterAt
    ParseUnexpectedToken ParseUnexpectedOperator ParseUnexpectedTerm ParseUnExpectedKeyword
    ParseUnknownOperator ParseUnsupportedToken ParseUnsupportedSelect ParseUnsupportedCase
    ParseUnsupportedCaseClause ParseUnsupportedAlias ParseUnsupportedSyntax
    ParseUnsupportedLiteralsGroupBy ParseUnsupportedCallWithStar ParseNonUnaryAgregateFunctionCall
    ParseCastArity ParseInvalidTypeParam ParseInvalidPathComponent ParseEmptySelect
    ParseSelectMissingFrom ParseMalformedJoin ParseAsteriskIsNotAloneInSelectList
    ParseCannotMixSqbAndWildcardInSelectList ParseInvalidContextForWildcardInSelectList
    UnsupportedSyntax UnsupportedFunction UnsupportedSqlOperation UnsupportedSqlStructure
    BadTableName DataSourcePathUnsupported InvalidTableAlias InvalidKeyPath
    """
)
_EVALUATION_CODES = _split_names(
    """
    InvalidQuery InvalidDataType IncorrectSqlFunctionArgumentType IllegalSqlFunctionArgument
    LikeInvalidInputs CastFailed InvalidCast ValueParseFailure IntegerOverflow
    EvaluatorInvalidArguments EvaluatorBindingDoesNotExist MissingHeaders AmbiguousFieldName
    InvalidColumnIndex EvaluatorInvalidTimestampFormatPattern
    EvaluatorInvalidTimestampFormatPatternSymbol
    EvaluatorInvalidTimestampFormatPatternSymbolForParsing
    EvaluatorInvalidTimestampFormatPatternToken EvaluatorTimestampFormatPatternDuplicateFields
    EvaluatorTimestampFormatPatternHourClockAmPmMismatch
    EvaluatorUnterminatedTimestampFormatPatternToken UnsupportedTypeForQuerying
    """
)
# Of requests and data; ProcessingTimeError is Ceph's, OverMaxMemory our own.
_OTHER_CODES = _split_names(
    """
    MalformedXML EmptyRequestBody MissingRequiredParameter InvalidRequestParameter
    InvalidExpressionType ExpressionTooLong InvalidDataSource InvalidCompressionFormat
    TruncatedInput ObjectSerializationConflict InvalidFileHeaderInfo InvalidQuoteFields
    InvalidJsonType InvalidScanRange UnsupportedScanRangeInput UnsupportedRangeHeader
    UnsupportedStorageClass MultipleDataSourcesUnsupported UnauthorizedAccess Busy InternalError
    NoSuchKey NoSuchBucket CSVParsingError CSVUnescapedQuote CSVEscapingRecordDelimiter
    JSONParsingError ParquetParsingError ParquetUnsupportedCompressionCodec UnsupportedParquetType
    OverMaxParquetBlockSize InvalidTextEncoding OverMaxRecordSize OverMaxColumn ColumnTooLong
    UnrecognizedFormatException ProcessingTimeError OverMaxMemory
    """
)
ALL_CODES = _SYNTAX_CODES | _EVALUATION_CODES | _OTHER_CODES


class SelectError(UserError, code="select"):
    """A statement, one of its values, or the object it reads is refused."""

    def __init__(
        self, code: str, message: str, *, status: int | None = None, fatal: bool = True
    ) -> None:
        """Keep what the answer needs.

        Args:
            code: The name that clients see, one of `ALL_CODES`.
            message: What is wrong, where, and what would be right.
            status: The HTTP status; by default the one that belongs to the code, mostly 400.
            fatal: False drops the row and counts it; the query goes on (`ErrorBudget`).
        """
        super().__init__(message)
        self.s3_code = code
        self.status_code = _HTTP_STATUS.get(code, 400) if status is None else status
        self.fatal = fatal

    def wire_code(self, dialect: Dialect) -> str:
        """Return the code as clients of this dialect know it; Ceph has two for all of SQL."""
        if dialect.is_ceph and self.s3_code in _SYNTAX_CODES:
            return "UnsupportedSyntax"
        if dialect.is_ceph and self.s3_code in _EVALUATION_CODES:
            return "ProcessingTimeError"
        return self.s3_code


def make_skippable_row_error(code: str, message: str, dialect: Dialect) -> SelectError:
    """Return an error that costs the row in `ceph-2020` and the query elsewhere."""
    return SelectError(code, message, fatal=dialect is not Dialect.CEPH_2020)


class ErrorBudget:
    """Counts the rows that a query dropped for their errors, in row order."""

    def __init__(self, limit: int = MAX_ROW_ERRORS) -> None:
        """Start at none; the `limit`-th ends the query."""
        self.limit = limit
        self.dropped = 0

    def count_dropped_row(self, error: SelectError) -> None:
        """Count the row that `error` drops.

        Raises:
            SelectError: `error` itself if it is fatal; otherwise, when the limit is reached, one
                that names the limit and the last error.
        """
        if error.fatal:
            raise error
        self.dropped += 1
        if self.dropped >= self.limit:
            raise SelectError(
                error.s3_code, f"{self.dropped} rows could not be evaluated; the last: {error}"
            ) from error
