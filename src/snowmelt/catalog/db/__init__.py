"""Database access: engines, transactions, locks and upgrades.

`database`: opens the catalog; read and write transactions on SQLite and PostgreSQL.
`fair_lock`: FIFO lock for the writer threads of one SQLite file.
`dialect`: SQL that differs between SQLite and PostgreSQL, and array parameters.
`schema_upgrade`: versions of the catalog's tables, and the upgrade to the latest one.
`database_server_clock`: a clock corrected to the database server's time.
"""
