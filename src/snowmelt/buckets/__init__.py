"""S3 buckets over a local store or a mounted backend, with the objects that a select reads.

`errors`: S3's error codes, with status and message.
`bucket_registry`: the buckets of a service, and a user's access to one.
`bucket`: the interface of buckets, object metadata and listing pages.
`local_bucket`: buckets with an index in the catalog and objects in a local store.
`mounted_store_bucket`: buckets in front of a store.
`write_once_bucket`: a bucket whose objects cannot be replaced.
`multipart`: multipart uploads to any bucket.
`checksums`: S3's checksums, and their combination over parts.
"""
