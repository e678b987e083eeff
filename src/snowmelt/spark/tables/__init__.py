"""A table as a DataFrame.

`spark_column_mapping`: a table's columns in Spark, and the plan of a table read.
`time_travel`: snapshots at an earlier commit number or time.
`partition`: the Python data source that reads partitions of files and chunks.
`chunk_cache`: cache of decoded chunks in executor memory.
`table_frame`: the DataFrame of a table.
"""
