"""Database access: engines, transactions, locks and upgrades.

`database`: opens the catalog; transactions, upgrades, writer lock, the server's clock.
`dialect`: SQL that differs between SQLite and PostgreSQL; array parameters.
"""
