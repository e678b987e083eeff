"""Leases, histories of background jobs, and running services.

`services`: registry and heartbeats of running services.
`leases`: mutual exclusion between processes, with fencing by epoch.
`loads`: history of loads, their files, and stream offsets.
`migrations`: history of migrations, and the backlog of unmigrated chunks.
`maintenance`: history of compaction and snapshot expiry.
`read_positions`: positions of streaming readers, which hold back garbage collection.
"""
