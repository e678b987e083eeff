"""A table as a DataFrame."""
