"""Object stores: one interface for local folders and remote stores.

`store_factory`: opens a store by URL or path.
`store`: interface of stores, validation of paths, and ordered listings.
`object_file`: an object as a file, for libraries that read files.
`local_store`: objects as files under one folder.
`verified_disk_sync`: syncs that detect failed writes, and reads that bypass the page cache.
`remote_store`: objects in S3, GCS and Azure, with obstore.
`overwrite_protection`: verifies that the output of a command replaces no file in use.
"""
