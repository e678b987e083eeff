"""Views of the catalog for people: pages of rows by key, as one role may see them. Read only.

The console, its JSON and `snowmelt … list` show these views.

`paging`: pages of rows that continue after the key of the last row.
`visibility`: the tables that a role may see, and whose contents it may see.
`channels`: channels with lag, owner and rejections, and the history of one.
`tables`: tables with backlog and last commit, and the figures of one.
`history`: loads, files of loads, migrations and maintenance runs.
`pipes`: pipes with their state and waiting files.
`freshness`: which tables and channels are late, quiet, or never committed.
`activity`: rows per second, freshness and rejected rows of the last hour.
"""
