"""Back up and restore an installation.

A backup is a folder or bucket with backup points. A point contains the tables of the catalog as of
one transaction, and the blobs, native files and S3 objects that they refer to.

`manifests`: the records of a point.
`backup_keys`: the key pair that encrypts the keys in a backup.
`destination`: storage of a backup: layout, lock, journals, verified objects.
`catalog_tables`: export and import of the catalog's tables.
`native_metadata`: lists the files of native tables and changes URLs in their metadata.
`creation`: creates a point.
`restoration`: restores a point into an empty installation.
`verification`: verifies a point with a trial restoration.
`expiration`: deletes old points and unreferenced objects.
"""
