"""Catalog objects: databases, schemas, tables, functions, pipes and buckets.

`namespaces`: databases and schemas.
`tables`: tables, versions of their columns, and the metadata pointer.
`renames_and_evolution`: renames, clustering and schema evolution.
`retention`: properties, UNDROP and the end of retention.
`channel_tombstones`: last client sequencers of removed channels.
`error_table_lookup`: tables of rejected rows.
`pipes`: pipes and their COPY definitions.
`libraries`: libraries of user code with their filters, parsers and sources.
`api_integrations`: API integrations.
`external_functions`: external functions and translators.
`functions_with_integrations`: a function with everything needed to call it.
`s3_buckets`: buckets and their privileges.
`s3_objects`: objects and multipart uploads in local files.
"""
