"""SQL front end: statement text into a bound query.

`lexer`: SQL text into tokens.
`expression_parser`: tokens into expressions, function calls and paths.
`parser`: tokens into a statement.
`ast`: nodes of the statement tree, tree walks and rewrites.
`binder`: names into columns and aliases; statement into a query.
`bound_query`: the query that executors run, and the fields of an object.
"""
