"""Database access: engines, transactions, locks and upgrades.

`database`: opening of the catalog, transactions, upgrades, writer lock, and server time.
`dialect`: SQL that differs between SQLite and PostgreSQL; array parameters.
`replication_triggers`: triggers that record changes for other sites, or reject writes.
"""
