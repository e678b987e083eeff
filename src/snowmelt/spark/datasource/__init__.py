"""The parts of the data source `snowmelt`: batch read, stream read, batch and stream write.

`catalog_connection`: catalog, stores and role, from the session or from options.
`options`: parsing of table, columns, conditions and time.
`reader`: planning of batch reads.
`stream_ranges`: chunks and native files between two stream positions.
`stream_reader`: planning of streaming reads.
`write_task`: writing of native files on an executor.
`writer`: batch and stream writers.
`write_commit`: the commit of a write.
"""
