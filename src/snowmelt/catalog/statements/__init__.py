"""Statements on the catalog: one module for each kind of object.

A module has the statements of its kind as a syntax tree whose classes execute themselves, their
grammar (`KINDS`), and what SHOW lists (a `Listing`). `executor` joins them in one table. Parsers go
past what they name, and raise StatementError, which says where, at anything else.

`executor`: one statement from text to result, in one transaction; the table of all kinds.
`statement_context`: base of all statements, role, names and privileges; kinds of objects, and SHOW.
`namespaces`: databases and schemas; DROP, UNDROP, DESCRIBE and COMMENT of tables, too.
`tables`: CREATE TABLE, its columns and properties, TRUNCATE; SHOW of tables and channels.
`alter_table`: ALTER TABLE.
`pipes`: pipes.
`users_and_roles`: users with their keys, and roles.
`grants`: privileges on objects and on the account, roles of users.
`buckets`: buckets.
`function_grammar`: clauses, arguments and types of functions.
`external_functions`: external functions and their translators.
`integrations`: API and security integrations, and integrations whose kind is not said.
`libraries`: libraries of user code, their filters, parsers and sources.
"""
