"""Columns, their types, and the forms, sizes and statistics of their values.

`types`: columns, logical types, table names, and compatibility modes.
`value_errors`: the errors for a value that its column rejects.
`conversion/`: user values into stored columns.
`chunk_types`: the Arrow form of a chunk, and 128-bit decimals in NumPy.
`size_estimates`: estimated bytes of values in a buffer.
`statistics`: statistics of the columns of a chunk.
`iceberg_table_form`: the Arrow form of a table's native files, and the conversion from chunk form.
`column_metadata`: columns as streaming v1 describes them.
`inference`: columns and types that rows have and their table lacks.
`column_change_compatibility`: the changes of columns under which older rows still fit.
`error_table`: the schema and the rows of error tables.
"""
