"""Alembic migrations of the catalog, one file each."""
