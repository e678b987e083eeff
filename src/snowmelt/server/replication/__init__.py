"""Replication in a service.

`routes`: handlers of the requests of other sites.
`site_process`: main module of the replication process.
`site_supervisor`: runs the replication process, and fences a replaced primary at the start.
"""
