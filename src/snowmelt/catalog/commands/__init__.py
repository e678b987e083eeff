"""Execution of parsed statements, like PostgreSQL's `commands/`.

`executor`: one statement from text to result, in one transaction.
`statement_context`: role, default names and privilege checks of one statement, and its result type.
`ddl`: CREATE, ALTER, DROP, GRANT and REVOKE; dispatch to the modules below.
`alter_table`: ALTER TABLE.
`error_table_property`: resolution of the ERROR_TABLE property.
`undrop_rename_truncate`: UNDROP, ALTER, COMMENT, TRUNCATE and LIKE.
`bucket_statements`: buckets, grants on buckets and on the account, access keys.
`functions`: external functions, translators, API integrations and libraries.
`pipes`: CREATE, DROP and DESCRIBE of pipes.
`security_integrations`: security integrations.
`show`: SHOW and DESCRIBE; dispatch to `show_functions`.
`show_functions`: SHOW and DESCRIBE rows of functions, translators and integrations.
"""
