"""Plain queries without Spark.

`plain_query`: queries that mean the same in Spark and DuckDB, and their DuckDB form.
`duckdb_engine`: execution of such queries by DuckDB over one snapshot of a table.
"""
