"""Records of databases, schemas, tables, functions, pipes, buckets."""
