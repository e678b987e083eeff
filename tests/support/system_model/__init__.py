"""Random operations on a real service beside a model of what it must contain.

`values`: column types, random values, how each interface takes them and how each reader returns them.
`model`: tables, columns and channels as they must be, and the comparison of rows.
`site`: the service, with its catalog and storage, which the run kills and starts again.
`writer_process`: a client of the SDK in a process of its own; `writers` drives it.
`spark_process`: a Spark session in a process of its own.
`run`: what the operations share: the site, the model, the log and the differences.
`rows`: random rows of a table, as its interfaces take them.
`sdk_operations`, `row_api_operations`, `pipe_operations`, `column_operations`, `table_operations`,
`load_operations`, `engine_operations`, `spark_operations`,
`concurrent_operations`: what a step of a run may do.
`readers`: a table as plain queries, PyIceberg and DuckDB return it.
`checks`: compares all readers, tokens and rejected rows with the model.
`history`: chooses the steps of a run from its seed.
"""
