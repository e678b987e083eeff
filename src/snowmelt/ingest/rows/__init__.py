"""Row API: request bodies to rows, chunks and commits.

Chunks are registered before the response is sent.

`row_service`: the operations of the row API, without HTTP.
`targets`: lookup of the table behind a pipe.
`request_batcher`: grouping of small requests.
`body`: decompression and line parsing of request bodies.
`row_converter`: rows to columns of the table.
`columnar_reader`: newline-delimited JSON to columns without row objects.
`uniform_line_reader`: bodies of uniform lines, read by a compiled kernel.
`line_kernels`: the numba kernels of `uniform_line_reader`.
`field_names`: fields of a body and the columns they name.
`pipe_evaluator`: expressions of a pipe, row by row.
`pipe_vector_evaluator`: expressions of a pipe, by columns.
`binary_encoding_tracker`: base64 or hexadecimal encoding of a client's binary values.
`schema_evolution`: columns that rows need and the table lacks.
`append_types`: a converted request, its outcome and its continuation token.
`chunk_builder`: requests to chunks and blobs; rejected rows for error tables.
`group_commit`: staging and registration of all pending requests in one transaction.
"""
