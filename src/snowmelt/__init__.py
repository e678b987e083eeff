"""Snowmelt: rows in within a second, exactly once, into open tables on Spark."""
