"""S3 Select: runs one SQL statement over one or more objects and streams the result records.

`request`: the parsed request: statement, input format, output format, scan range, dialect.
`xml_request_and_event_stream`: parses SelectObjectContent XML and writes event stream frames.
`client`: sends requests to a remote endpoint through boto3.
`local_query`: queries over local files and pipes.
`dialect`: the three SQL dialects.
`sql`: parses a statement and binds it to a query.
`formats`: reads objects as blocks of records and column batches.
`vector`: vectorized expression evaluation.
`scalar`: record-at-a-time evaluation, the reference semantics.
`kernels`: Numba kernels for parsing, comparing and writing.
`execution`: worker pool, sinks and output.
`vectors`: column vectors and the batch interface.
`values`: SQL values: types, inference, formatting.
`timestamps`: SQL timestamps with precision and offset.
`resource_limits`: resource limits of one execution.
`errors`: S3 Select error codes.
`warmup`: kernel compilation before the first query.
"""
