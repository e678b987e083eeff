"""Alembic migrations of the catalog's tables, one immutable module per version.

`v0001_first`: the first tables.
`v0002_s3_objects`: access keys, buckets, objects and uploads of the S3 endpoint.
`v0003_tombstones`: index of blob tombstones by age.
`v0004_loads`: libraries, loads, loaded files and stream offsets.
`v0005_functions`: external functions, API integrations and translators.
`v0006_schema_evolution`: schema evolution of tables.
`v0007_maintenance`: maintenance runs.
`v0008_services`: running services, master key check and security integrations.
`v0009_rows`: pipes and row API state.
`v0010_retention`: retention of dropped objects, comments and future grants.
`v0011_error_tables`: error tables.
`v0012_row_clients`: byte encodings of row API clients.
"""
