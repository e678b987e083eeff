"""Paths of the requests between the sites of a failover group."""

PULL_PATH = "/v1/snowmelt/replication/pull"
READ_PATH = "/v1/snowmelt/replication/read"
STATE_PATH = "/v1/snowmelt/replication/state"
