"""Leases, histories of background jobs, and running services.

`leases`: mutual exclusion between processes, with fencing by epoch; running services.
`run_history`: the runs of any kind of job; compaction, snapshot expiry, migrations, backlog.
`load_history`: history of loads, their files, stream offsets, and readers' positions.
"""
