"""Errors of S3 Select: SelectObjectContent error codes, HTTP statuses and the row error budget."""

from __future__ import annotations

from snowmelt.errors import UserError
from snowmelt.select.dialect import Dialect

MAX_ROW_ERRORS = 100
"""Limit of rows dropped because of errors. The query fails at the 100th."""

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
# Errors of requests and data. ProcessingTimeError is from Ceph, OverMaxMemory from Snowmelt.
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
    """Rejection of a statement, of one of its values, or of the object that it reads."""

    def __init__(
        self, code: str, message: str, *, status: int | None = None, fatal: bool = True
    ) -> None:
        """Create an error with the details of its response.

        Args:
            code: Error code that clients receive, one of `ALL_CODES`.
            message: What is invalid, where, and what is expected.
            status: HTTP status. None: the status of the code, which is 400 for most codes.
            fatal: If False, the row is dropped and counted, and the query continues (`ErrorBudget`).
        """
        super().__init__(message)
        self.s3_code = code
        self.status_code = _HTTP_STATUS.get(code, 400) if status is None else status
        self.fatal = fatal

    def wire_code(self, dialect: Dialect) -> str:
        """Return the error code that the dialect sends. Ceph has only two codes for SQL errors."""
        if dialect.is_ceph and self.s3_code in _SYNTAX_CODES:
            return "UnsupportedSyntax"
        if dialect.is_ceph and self.s3_code in _EVALUATION_CODES:
            return "ProcessingTimeError"
        return self.s3_code


def make_skippable_row_error(code: str, message: str, dialect: Dialect) -> SelectError:
    """Return an error that drops the row in `ceph-2020` and fails the query in other dialects."""
    return SelectError(code, message, fatal=dialect is not Dialect.CEPH_2020)


class ErrorBudget:
    """Counter of rows dropped because of errors, in row order.

    The query fails at the dropped row `MAX_ROW_ERRORS`.
    """

    def __init__(self) -> None:
        self.dropped = 0

    def count_dropped_row(self, error: SelectError) -> None:
        """Count the row that `error` drops.

        Raises:
            SelectError: If `error` is fatal (raises `error` itself), or if the limit is reached
                (the message contains the limit and the last error).
        """
        if error.fatal:
            raise error
        self.dropped += 1
        if self.dropped >= MAX_ROW_ERRORS:
            raise SelectError(
                error.s3_code, f"{self.dropped} rows could not be evaluated; the last: {error}"
            ) from error
