"""SQL expressions of COPY, translated to DuckDB and evaluated per block of parsed rows.

`types`: expression types and the implicit conversions between them.
`datetime_templates`: date and time templates of TO_CHAR, TO_DATE, TO_TIMESTAMP and FORMAT.
`regex_patterns`: the subset of regular expressions that Vertica and RE2 share.
`function_translation`: Vertica's functions as DuckDB SQL.
`casts`: Vertica's casts as DuckDB SQL.
`sql_translation`: Vertica expressions into DuckDB SQL.
`evaluator`: evaluation of the expressions of a load, block by block, and functions that DuckDB lacks.
"""
