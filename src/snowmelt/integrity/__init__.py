"""Integrity checks of stored data, and traces of rows.

Terms: the *ledger* is the permanent record of migrated chunks. The *lineage* consists of the ledger
and the records of native files, which list the chunks and loads in each file.

`findings`: kinds of findings, with their meaning and remedy.
`table_state`: the catalog's data about a table, read in one transaction.
`catalog_checks`: compares sequences, channels and ledger.
`file_checks`: compares the lineage, the native table and its files.
`chunk_checks`: compares chunks with their blobs.
`orphan_checks`: finds unreferenced objects.
`checker`: runs the checks of a table or of all tables.
`trace`: finds the commit, blob, native files and snapshots of a token, file, load or row.
"""
