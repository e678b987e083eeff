"""Parsing of statements: tokens, names, types and clauses. No database is needed.

`lexer`: tokens of SQL text and of COPY; split of scripts; kinds of statements.
`cursor`: position in the tokens of one statement, its errors; names and `WORD = value` clauses.
`column_types`: column types in DDL.
`pipe_copy`: syntax tree and parser of the COPY statement of a pipe, and of its expressions.
"""
