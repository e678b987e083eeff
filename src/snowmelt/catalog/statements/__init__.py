"""Catalog statements: one module for each kind of object.

A module defines its statements as classes with an `execute` method, their parsers (`KINDS`), and
the rows of SHOW (a `Listing`). `executor` collects them in one table. Parsers advance a cursor and
raise StatementError with the position of an unexpected token.

`executor`: parses and executes one statement in one transaction.
`statement_context`: base class of statements, session, kinds of objects, and SHOW.
`namespaces`: databases and schemas; DROP, UNDROP, DESCRIBE and COMMENT, also of tables.
`tables`: CREATE TABLE, its columns and properties, TRUNCATE; SHOW of tables and channels.
`alter_table`: ALTER TABLE.
`pipes`: pipes and their status.
`histories`: SHOW of loads, migrations and maintenance runs.
`users_and_roles`: users with their keys, and roles.
`grants`: privileges on objects and on the account, roles of users.
`buckets`: buckets of the S3 endpoint.
`function_grammar`: clauses, arguments and types of functions.
`external_functions`: external functions and their translators.
`integrations`: API and security integrations.
`libraries`: libraries of user code, their filters, parsers and sources.
"""
