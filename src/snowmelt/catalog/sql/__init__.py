"""Parsing of statements: tokens, names, types and clauses. Does not access the catalog.

`lexer`: tokens of SQL and COPY; splits scripts into statements and classifies them.
`cursor`: cursor over the tokens of a statement; parses names and `WORD = value` clauses.
`column_types`: column types in DDL.
`pipe_copy`: syntax tree and parser of the COPY statement of a pipe.
"""
