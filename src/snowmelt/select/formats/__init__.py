"""Input formats: read CSV, JSON and Parquet objects as blocks, and decode blocks to column batches.

`byte_streams`: object sources and byte streams, plain or decompressed.
`blocks`: splits byte streams into blocks of whole records, and resolves scan ranges.
`csv_dialect`: CSV parsing rules of a request.
`csv_state_machine`: reference CSV parser in pure Python.
`csv_reader`: CSV objects as record batches.
`json_reader`: JSON objects as record batches.
`json_lines`: JSON lines as column batches, parsed by kernels.
`parquet_reader`: Parquet objects as record batches, with row group pruning.
`read_units`: one interface over all formats and over several objects.
"""
