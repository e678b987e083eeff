"""Statements on the catalog: one module for each kind of object.

A module has the syntax trees of its statements, which execute themselves, their parsers (`KINDS`),
and the rows of SHOW (a `Listing`). `executor` joins them in one table. Parsers advance a cursor and
raise StatementError with the position of an unexpected token.

`executor`: one statement from text to result, in one transaction; the table of all kinds.
`statement_context`: base class of statements, session, kinds of objects, and SHOW.
`namespaces`: databases and schemas; DROP, UNDROP, DESCRIBE and COMMENT, also of tables.
`tables`: CREATE TABLE, its columns and properties, TRUNCATE; SHOW of tables and channels.
`alter_table`: ALTER TABLE.
`pipes`: pipes.
`users_and_roles`: users with their keys, and roles.
`grants`: privileges on objects and on the account, roles of users.
`buckets`: buckets.
`function_grammar`: clauses, arguments and types of functions.
`external_functions`: external functions and their translators.
`integrations`: API and security integrations, and statements on integrations without a kind.
`libraries`: libraries of user code, their filters, parsers and sources.
"""
