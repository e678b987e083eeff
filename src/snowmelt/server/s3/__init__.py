"""S3 endpoint for clients such as boto3 and the AWS CLI.

`endpoint_server`: builds the endpoint and runs it on its port.
`request`: parsed requests: bucket, key and parameters.
`endpoint`: dispatches requests to operations; restricts stage credentials to uploads.
`authentication`: authenticates requests by their signature.
`table_access`: access to the files of one table with temporary credentials.
`signatures`: signature versions 4 and 2.
`supported_parameters`: headers and parameters that each operation supports.
`request_context`: an authorized request and the components that operations use.
`body`: receives and verifies request bodies.
`conditional_requests`: ranges and conditional headers.
`bucket_operations`: operations on buckets and listings of objects.
`object_operations`: operations that read, write, copy or delete objects.
`multipart_operations`: operations on multipart uploads.
`select_operation`: SelectObjectContent.
`xml`: XML documents of requests and responses.
`responses`: responses, streams and error documents.
"""
