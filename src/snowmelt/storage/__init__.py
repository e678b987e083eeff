"""Bytes by URL."""
