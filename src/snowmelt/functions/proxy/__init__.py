"""What stands between a caller and a service: a proxy with faults, a recorder, a replayer."""
