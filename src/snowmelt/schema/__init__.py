"""Columns and their types, and the stored forms, sizes and statistics of values.

`types`: columns, logical types, table names, compatibility modes, errors, wire metadata.
`conversion/`: conversion of user values to stored columns.
`chunk_types`: Arrow form of chunks, estimated sizes of values, and 128-bit decimals in NumPy.
`statistics`: statistics of the columns of a chunk.
`iceberg_table_form`: Arrow form of native files, and the conversion from chunk form.
`row_fingerprint`: fingerprints of rows that do not depend on their order.
`inference`: inference of columns that a table lacks, and allowed changes of columns.
`error_table`: schema and rows of error tables.
`notebook_tables`: HTML tables that display results in notebooks.
"""
