"""SQL front end: parses a statement and resolves its names to a query.

`lexer`: splits SQL text into tokens.
`expression_parser`: parses tokens into expressions, function calls and paths.
`parser`: parses tokens into a statement.
`ast`: statement nodes, tree walks and node replacement.
`binder`: resolves names to columns and aliases, and builds the query.
`bound_query`: the query that executors run, and the fields of an object.
"""
