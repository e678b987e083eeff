"""S3 errors: codes that clients expect, HTTP statuses and messages."""

from __future__ import annotations

from snowmelt.errors import UserError

# HTTP status and default message of each code.
_STATUS_AND_MESSAGES: dict[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied."),
    "AuthorizationHeaderMalformed": (400, "The authorization header is malformed."),
    "AuthorizationQueryParametersError": (400, "The query's authorization is malformed."),
    "BadDigest": (400, "The checksum you specified did not match what we received."),
    "BucketAlreadyExists": (409, "The requested bucket name is not available."),
    "BucketAlreadyOwnedByYou": (409, "You already own this bucket."),
    "BucketNotEmpty": (409, "The bucket you tried to delete is not empty."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed size."),
    "EntityTooSmall": (400, "A part other than the last is smaller than the minimum of 5 MiB."),
    "ExpiredToken": (400, "The provided token has expired."),
    "IllegalLocationConstraintException": (400, "The location constraint is for another region."),
    "IncompleteBody": (400, "You did not provide the number of bytes that the request promised."),
    "InternalError": (500, "Internal error. The service log has details. Retry the request."),
    "InvalidAccessKeyId": (403, "The access key id you provided does not exist."),
    "InvalidArgument": (400, "Invalid argument."),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidDigest": (400, "The Content-MD5 you specified is not valid."),
    "InvalidPart": (400, "A part was not found, or its ETag or checksum differs."),
    "InvalidPartOrder": (
        400,
        "The list of parts was not in ascending order. Parts must be ordered by part number.",
    ),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable"),
    "InvalidRange": (416, "The requested range cannot be satisfied."),
    "InvalidRequest": (400, "Invalid request."),
    "InvalidToken": (400, "The provided token is malformed or otherwise invalid."),
    "InvalidURI": (400, "The address cannot be parsed."),
    "KeyTooLongError": (400, "Your key is too long: the maximum is 1,024 bytes of UTF-8."),
    "MalformedXML": (400, "The XML you provided is not well-formed or not what is expected here."),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum of 2 KiB."),
    "MethodNotAllowed": (405, "The method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (404, "The upload does not exist; it may have been completed or aborted."),
    "NoSuchVersion": (404, "The specified version does not exist; only version null exists."),
    "NotImplemented": (501, "This operation or option is not supported."),
    "NotModified": (304, "Not modified."),
    "PreconditionFailed": (412, "At least one of the preconditions is false."),
    "RequestTimeTooSkewed": (403, "The request's time and the service's differ too much."),
    "RequestTimeout": (
        400,
        "No byte of the body arrived for a minute.",
    ),
    "ServiceUnavailable": (503, "Please try again."),
    "SignatureDoesNotMatch": (
        403,
        "The request's signature is not the one that its secret key makes; check key and method.",
    ),
    "SlowDown": (503, "Please reduce your request rate."),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}


class S3Error(UserError, code="s3_refusal"):
    """The S3 request is rejected."""

    def __init__(self, s3_code: str, message: str | None = None, **details: object) -> None:
        """Create an error with one of S3's codes.

        Args:
            s3_code: The code, which determines the status.
            message: Message to send instead of S3's default.
            details: Additional elements of the response, such as `BucketName`.
        """
        status, sentence = _STATUS_AND_MESSAGES[s3_code]
        super().__init__(message or sentence)
        self.s3_code = s3_code
        self.status_code = status
        self.details = details
