"""Leases, histories of background jobs, and running services.

`services`: registry and heartbeats of running services.
`leases`: mutual exclusion between processes, with fencing by epoch.
`run_history`: the runs of any kind of job.
`load_history`: history of loads, their files, and stream offsets.
`migration_history`: history of migrations, and the backlog of unmigrated chunks.
`maintenance_history`: history of compaction and snapshot expiry.
`stream_read_positions`: positions of streaming readers, which hold back garbage collection.
"""
