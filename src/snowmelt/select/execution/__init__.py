"""Query execution: workers process blocks, and a sink receives results in object order.

`engine`: opens a query, schedules blocks on the worker pool, streams payloads.
`block_executor`: evaluates WHERE and expressions for one block.
`serializer`: writes selected records as CSV or JSON.
`passthrough`: copies input records for `SELECT *`.
`sort_limit_aggregate`: applies LIMIT, DISTINCT, ORDER BY and aggregation to block results.
"""
