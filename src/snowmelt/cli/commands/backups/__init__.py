"""The subcommands for backups and replicas.

`backup`: back up an installation; list, verify and expire backup points.
`restore`: restore a point into an empty installation.
`replica`: replicate to another site and fail over.
"""
