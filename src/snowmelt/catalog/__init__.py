"""Metadata catalog: the only package that writes the database.

`model`: SQLAlchemy table definitions, record types and constants.
`db`: engines, transactions, SQL dialects and schema upgrades.
`sql`: lexer and parsers of names, types and clauses.
`statements`: SQL statements for each kind of object: grammar, execution and listing.
`objects`: databases, schemas, tables, functions, pipes and buckets.
`security`: users, roles, grants and encryption keys.
`streaming`: channels, chunks and the commit protocol.
`views`: pages of rows for the console and the CLI, limited to what a role may see.
`jobs`: leases, and the histories of loads, migrations and maintenance.
"""
