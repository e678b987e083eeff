"""Users, roles, grants and keys.

`access_control`: users, roles, privileges and their checks, future grants, visible objects.
`oauth_integrations`: OAuth authorization servers.
`access_keys`: S3 access keys and temporary stage credentials.
`encryption_keys`: master key, table keys and data keys.
"""
