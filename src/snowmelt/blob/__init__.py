"""The BDEC blob format: tables into encrypted blobs, and back.

`writer`: tables into a blob.
`encryption`: blob paths, padding, and encryption of chunks.
`chunk_table_reader`: a chunk of a blob into a table.
`parquet_footer`: a chunk's Parquet footer, and the check against a table.
`column_decoder`: columns of a checked Parquet file into Arrow arrays.
`thrift_compact`: reader and writer of Thrift's compact protocol.
"""
