"""Leases, histories of loads and background jobs, and the registry of services.

`leases`: mutual exclusion between processes, fenced by epoch; registry of services.
`run_history`: runs of compaction, snapshot expiration and migration; the migration backlog.
`backup_history`: runs of backups.
`lineage`: permanent records of committed chunks and native files.
`load_history`: loads, their files, stream offsets, and read positions.
"""
