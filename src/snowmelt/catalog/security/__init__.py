"""Users, roles, grants and keys.

`access_control`: users, roles, privileges and their checks.
`future_grants`: grants that apply to objects created later.
`visibility`: objects that a role may see.
`oauth_integrations`: OAuth authorization servers.
`access_keys`: S3 access keys and temporary stage credentials.
`encryption_keys`: master key, table keys and data keys.
"""
