"""SQL expressions of COPY, translated to DuckDB and evaluated per block of parsed rows.

`types`: expression types and the implicit conversions between them.
`datetime_templates`: date and time templates of TO_CHAR, TO_DATE, TO_TIMESTAMP and FORMAT.
`regex_patterns`: regular expressions in the syntax that Vertica and RE2 share.
`function_translation`: Vertica's functions as DuckDB SQL.
`casts`: Vertica's casts as DuckDB SQL.
`sql_translation`: Vertica expressions as DuckDB SQL.
`evaluator`: evaluation of a load's expressions per block, and functions that DuckDB lacks.
"""
