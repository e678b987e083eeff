"""Pages of the console.

`routes`: paths and their pages.
`actions`: paths of pages that use child processes or change data.
`action`: type and input of such a page.
`overview`: problems, throughput, freshness and services.
`channels`: the list of channels, and one channel.
`channel_reasons`: reasons for late channels, with remedies.
`tables`: the list of tables, and one table.
`loads`: loads with files and rejects, migrations.
`runs`: lists of loads, migrations and compactions.
`pipes`: pipes with waiting and failed files.
`kafka`: topics with lag by partition.
`checks`: results of `snowmelt doctor` and `snowmelt check`.
`sites`: sites of a failover group, and instructions for the loss of one.
`trace`: trace of a token or a row to its chunk, blob and native files.
`query`: SQL over one snapshot, rows of tables, replay of rejected rows.
`select`: S3 Select on an object.
`functions`: external functions and their services.
"""
