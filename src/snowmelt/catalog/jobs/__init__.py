"""Leases, histories of background jobs, and running services.

`leases`: mutual exclusion between processes, fenced by epoch; running services.
`run_history`: runs of compaction, snapshot expiry and migration; the migration backlog.
`lineage`: permanent records of committed chunks and native files.
`load_history`: loads, their files, stream offsets, and read positions.
"""
