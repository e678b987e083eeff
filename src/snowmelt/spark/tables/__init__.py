"""A table as a DataFrame.

`spark_column_mapping`: the columns as Spark sees them, and the definition of a read.
`time_travel`: snapshots of the past.
`partition`: planning and reading of partitions, each some files and chunks.
`partition_source`: partitions as a Python data source.
`chunk_cache`: decoded chunks in executor memory.
`table_frame`: the DataFrame of a table.
"""
