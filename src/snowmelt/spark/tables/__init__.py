"""A table as a DataFrame.

`spark_column_mapping`: the columns in Spark, and the definition of a read.
`time_travel`: snapshots of the past.
`partition`: partitions of files and chunks, and the data source that reads them.
`chunk_cache`: decoded chunks in executor memory.
`table_frame`: the DataFrame of a table.
"""
