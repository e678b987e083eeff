"""Text of statements into tokens, names, types and clauses, without a database.

`lexer`: SQL text and scripts into tokens, for DDL and for COPY; kinds of statements.
`cursor`: position in the tokens of one statement, its errors; names and `WORD = value` clauses.
`column_types`: column types as DDL writes them.
`pipe_copy`: syntax tree and parser of a pipe's COPY, and of the expressions in it.
"""
