"""Objects by URL: one interface for local folders and remote object stores.

`store_factory`: a URL or path into a store.
`store`: the interface of stores, validation of paths, and ordered listings.
`local_store`: objects as files beneath one folder.
`verified_disk_sync`: syncs that detect failed writes, and reads past the page cache.
`remote_store`: objects in S3, GCS and Azure, through obstore.
`overwrite_protection`: the check that a command's output replaces nothing in use.
"""
