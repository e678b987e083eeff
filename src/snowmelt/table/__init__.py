"""One table: its snapshot, native files and migration."""
