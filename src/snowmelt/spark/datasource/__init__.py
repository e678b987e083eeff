"""Parts of the data source `snowmelt`: batch reads, stream reads, batch writes and stream writes.

`catalog_connection`: connection to catalog and stores, from the session or from options.
`options`: parsing of table, columns, conditions and time.
`reader`: planning of batch reads.
`stream_ranges`: chunks and native files between two stream positions.
`stream_reader`: planning of streaming reads.
`write_task`: writing of native files on an executor.
`writer`: batch and stream writers.
`write_commit`: commit of a write.
"""
