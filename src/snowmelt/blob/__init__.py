"""BDEC blob format: writer and reader of encrypted blobs.

`writer`: builds a blob from tables.
`encryption`: blob paths, padding, and encryption of chunks.
`chunk_table_reader`: reads a chunk of a blob into a table.
`parquet_footer`: parses the Parquet footer of a chunk and checks it against a table.
`column_decoder`: decodes columns of a checked Parquet file into Arrow arrays.
`thrift_compact`: reader and writer of Thrift's compact protocol.
"""
