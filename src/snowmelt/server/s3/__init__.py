"""S3 endpoint for clients such as boto3 and the AWS CLI.

`endpoint_server`: construction, threads and listener of the endpoint.
`request`: parsing of a request: bucket, key and parameters.
`endpoint`: dispatch of requests to operations; restriction of stage credentials to uploads.
`authentication`: the user and access key behind a signature.
`table_access`: reads of the files of one table with temporary credentials.
`signatures`: signature versions 4 and 2.
`supported_parameters`: headers and parameters that each operation supports.
`request_context`: an authorized request and the components that operations use.
`body`: receiving and verifying request bodies.
`conditional_requests`: ranges and conditional headers.
`bucket_operations`: operations on buckets and listings of objects.
`object_operations`: operations that read, write, copy or delete objects.
`multipart_operations`: operations on multipart uploads.
`select_operation`: SelectObjectContent.
`xml`: XML documents of requests and responses.
`responses`: responses, streams and error documents.
"""
