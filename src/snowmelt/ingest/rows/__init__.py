"""Rows over HTTP: bodies to rows, rows to chunks, chunks registered before the answer."""
