"""S3 buckets in a local store or a mounted backend.

`errors`: S3's error codes, with status and message.
`bucket_registry`: buckets of a service, and a user's access to a bucket.
`bucket`: interface of buckets, object metadata and listing pages.
`local_bucket`: buckets with an index in the catalog and objects in a local store.
`mounted_store_bucket`: buckets that serve the objects of a store.
`write_once_bucket`: buckets whose objects cannot be replaced.
`multipart`: multipart uploads to any bucket.
`checksums`: S3's checksums, and combination of the checksums of parts.
"""
