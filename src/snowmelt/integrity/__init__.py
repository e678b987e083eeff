"""Checks of what is stored, and traces of rows.

`findings`: kinds of findings, with their meaning and remedy.
`table_state`: what the catalog says of a table, read in one transaction.
`catalog_checks`: sequences, channels and the ledger against each other.
`file_checks`: the lineage, the native table and its files against each other.
`chunk_checks`: chunks and their blobs.
`orphan_checks`: objects that nothing refers to.
`checker`: runs the checks of a table or of all tables.
`trace`: from a token, file, load or row to everything that it passed.
"""
