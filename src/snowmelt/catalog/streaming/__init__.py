"""Channels, chunks, the commit protocol."""
