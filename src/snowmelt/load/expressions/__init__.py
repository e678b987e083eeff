"""SQL expressions of COPY, computed in DuckDB."""
