"""Backups of an installation, and their restoration.

A backup is a folder or bucket of points. Each point has everything that the catalog named in one
transaction: the catalog's tables, and the blobs, native files and objects of buckets.

`manifests`: the records of a point.
`backup_keys`: the key pair that protects the keys in a backup.
`destination`: layout, lock, journals and verified objects of a backup.
`catalog_tables`: tables of the catalog in a portable form, and back.
`native_metadata`: files of native tables, and their metadata with other addresses.
`creation`: one point, full or incremental.
`restoration`: a point into an empty installation.
`verification`: a trial restoration with checks.
`expiration`: deletion of old points and of objects that no point names.
"""
