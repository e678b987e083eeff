"""One table: snapshots, pruning, native Iceberg files, migration and maintenance.

`snapshot`: a consistent view of tables, native files up to a watermark and chunks above it.
`pruning`: selection of the files and chunks that can match a query's predicates.
`chunk_reader`: reads one chunk as a table in native form, without the catalog.
`native_file`: a native file's entry in the metadata, and readers of its rows.
`table_reader`: reads chunks and whole tables without an engine.
`warehouse_paths`: paths and addresses of native files.
`file_io`: PyIceberg's file access through Snowmelt's stores.
`column_bounds`: encoded bounds of native columns.
`native_file_writer`: writes one native Parquet file and its metadata entry.
`external_sort`: sorts the rows of a clustered table in bounded memory.
`iceberg`: Iceberg metadata and commits of one table.
`migration_task`: writes chunks as native files, on any executor.
`migration`: plan, lease and commit of a migration.
`fresh_files`: native files with the rows of chunks that are not migrated.
`published_manifests`: encodes the manifests of published snapshots.
`snapshot_publication`: publishes snapshots of native and fresh files for engines.
`file_lineage`: records of the files that a commit adds and removes.
`file_removal`: removal of native and fresh files in a commit.
`load_commit`: begin, commit and abort of a load.
`rejects`: schema and rows of tables of rejected records.
`compaction`: rewrites small native files as larger ones.
`file_replacement_run`: runs that replace native files or expire snapshots.
`active_run_files`: files of runs that are not in the catalog.
`garbage_collection`: deletion of blobs, native files and dropped tables.
"""
