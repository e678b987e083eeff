"""SQL front end: parses statement text and binds it to a query.

`lexer`: split SQL text into tokens.
`expression_parser`: parse tokens into expressions, function calls and paths.
`parser`: parse tokens into a statement.
`ast`: statement nodes, tree walks and node replacement.
`binder`: resolve names to columns and aliases, and build the query.
`bound_query`: the query that executors run, and the fields of an object.
"""
