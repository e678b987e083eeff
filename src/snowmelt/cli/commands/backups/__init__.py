"""The subcommands for backups.

`backup`: back up an installation; list, verify and expire backup points.
`restore`: restore a point into an empty installation.
"""
