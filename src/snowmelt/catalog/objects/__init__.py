"""Catalog objects: databases, schemas, tables, functions, pipes and buckets.

`namespaces`: databases and schemas; properties, UNDROP and retention.
`tables`: tables, schema versions, error tables, pipes, and the metadata pointer.
`file_pipes`: state of pipes that load files, and the files that they could not load.
`renames_and_evolution`: renames, clustering and schema evolution.
`channel_tombstones`: last client sequencers of removed channels.
`libraries`: libraries of user code with their filters, parsers and sources.
`external_functions`: external functions, their API integrations and translators.
`name_suggestions`: the most similar name in errors about missing tables and functions.
`published_snapshots`: snapshots that other engines load, with their fresh files and demand.
`s3_buckets`: buckets and their privileges.
`s3_objects`: objects and multipart uploads in local files.
`failover_groups`: role of this site in its failover group, followers, promotion and fencing.
"""
