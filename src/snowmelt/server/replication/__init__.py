"""Replication in a service.

`routes`: handlers of the requests of other sites.
`export_process`: main module of the processes that export states and read objects.
`site_process`: main module of the replication process.
`site_supervisor`: runs the replication process, and fences a replaced primary at the start.
"""
