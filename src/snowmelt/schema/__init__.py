"""Columns, their types, and the forms, sizes and statistics of their values.

`types`: columns, logical types, table names, compatibility modes, errors, wire metadata.
`conversion/`: user values into stored columns.
`chunk_types`: the Arrow form of a chunk, sizes of values, and 128-bit decimals in NumPy.
`statistics`: statistics of the columns of a chunk.
`iceberg_table_form`: the Arrow form of a table's native files, and the conversion from chunk form.
`row_fingerprint`: fingerprints of rows that do not depend on their order.
`inference`: columns and types that rows have and their table lacks; allowed changes of columns.
`error_table`: the schema and the rows of error tables.
"""
