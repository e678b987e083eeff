"""Buckets and their objects over a store: what an S3 client expects to find around a select."""
