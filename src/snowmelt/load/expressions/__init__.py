"""SQL expressions of COPY, translated to DuckDB and evaluated per block of parsed rows.

`types`: expression types and the implicit conversions between them.
`datetime_templates`: date and time templates of TO_CHAR, TO_DATE, TO_TIMESTAMP and FORMAT.
`regex_patterns`: regular expressions in the syntax that Vertica and DuckDB's RE2 share.
`function_translation`: translation of Vertica's functions to DuckDB SQL.
`casts`: translation of Vertica's casts to DuckDB SQL.
`sql_translation`: translation of Vertica expressions to DuckDB SQL.
`evaluator`: evaluation of a load's expressions per block, with the functions that DuckDB lacks.
"""
