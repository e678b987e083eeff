"""Row API: converts request bodies to rows and chunks, and commits them.

Chunks are registered before the response is sent.

`row_service`: operations of the row API, without HTTP.
`targets`: lookup of the target table of a pipe.
`request_batcher`: grouping of small requests.
`body`: decompression and line parsing of request bodies.
`row_converter`: converts rows to columns of the table.
`columnar_reader`: converts newline-delimited JSON to columns without row objects.
`line_reader`: reads bodies of scalars with the compiled scanner.
`field_names`: fields of a body and the columns they name.
`pipe_evaluator`: evaluates expressions of a pipe row by row.
`pipe_vector_evaluator`: evaluates expressions of a pipe by columns.
`binary_encoding_tracker`: determines the encoding of a client's binary values.
`schema_evolution`: adds columns of rows that are missing in the table.
`append_types`: converted requests, their outcomes, and continuation tokens.
`chunk_builder`: builds chunks and blobs from requests, and stages rejected rows.
`group_commit`: staging and registration of all pending requests in one transaction.
"""
