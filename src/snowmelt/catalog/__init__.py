"""Metadata: the only writer of the database."""
