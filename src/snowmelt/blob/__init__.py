"""The BDEC blob: bytes in, batches out."""
