"""Users, roles, grants and keys.

`access_control`: users, roles, privileges and their checks, future grants, visible objects.
`oauth_integrations`: OAuth authorization servers.
`encryption_keys`: master key, table keys and data keys; S3 access keys, stage credentials.
"""
