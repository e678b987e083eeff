"""The SDK: rows become columns, chunks, blobs; blobs are staged and registered."""
