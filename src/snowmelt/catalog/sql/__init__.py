"""DDL front end: SQL text into statement objects.

`lexer`: SQL text and scripts into tokens, for DDL and for COPY.
`cursor`: position in the tokens of one statement, and its errors.
`object_name_types`: names, their levels, and the modes of CREATE.
`property_clauses`: `WORD = value` clauses.
`column_types`: column types as DDL writes them.
`ast`: statement objects.
`pipe_ast`: statement objects and expressions of pipes.
`parser`: first words of a statement; dispatch to the parsers below.
`table_parser`: CREATE TABLE and ALTER TABLE.
`object_parser`: databases, schemas, tables, buckets and libraries.
`pipe_parser`: pipes and their expressions.
`function_parser`: external functions and translators.
`integration_parser`: API and security integrations.
`access_parser`: users, roles and grants.
"""
