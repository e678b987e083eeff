"""Plain queries without Spark.

`plain_query`: detection of queries with the same result in Spark and DuckDB, and their DuckDB SQL.
`duckdb_engine`: execution of such queries in DuckDB, on one snapshot of a table.
"""
