"""Leases, runs of background jobs, services."""
