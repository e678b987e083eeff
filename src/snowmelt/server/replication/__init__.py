"""Replication in a service.

`routes`: the requests of other sites.
`site_process`: the process that works for the group.
`site_supervisor`: starts that process, and fences a former primary before it serves.
"""
