"""Metadata catalog: the only package that writes the database.

`model`: SQLAlchemy table definitions, record types and constants.
`db`: engines, transactions, SQL dialects and schema upgrades.
`sql`: text of statements into tokens, names, types and clauses.
`statements`: grammar, execution and listing of each kind of object.
`objects`: databases, schemas, tables, functions, pipes and buckets.
`security`: users, roles, grants and encryption keys.
`streaming`: channels, chunks and the commit protocol.
`views`: pages of rows for people, as one role may see them.
`jobs`: leases, and the histories of loads, migrations and maintenance.
"""
