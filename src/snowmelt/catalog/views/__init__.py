"""Read-only lists of the catalog, as one role may see them, with keyset pagination.

The console, its JSON, SHOW of histories and `snowmelt … list` show these lists.

`paging`: keyset pagination and counts.
`visibility`: the tables that a role may see, and whose contents it may see.
`channels`: channels with state, lag, owner and rejections, and the history of one.
`tables`: tables with backlog and last commit, and the figures of one.
`history`: loads, files of loads, migrations and maintenance runs.
`pipes`: pipes with their state and waiting files.
`kafka`: partitions of Kafka topics with their lag.
`sites`: sites of a failover group, and diverged changes.
`freshness`: which tables are late, quiet, or never committed.
`channel_states`: the state of each channel, from its own commits, its table and its Kafka partition.
`activity`: rows per second, freshness and rejected rows of the last hour.
"""
