"""Replication in a service.

`routes`: the requests of other sites.
`site_process`: the process that works for the group.
`site_supervisor`: what a service does: it runs that process, and fences a former primary before it serves.
"""
