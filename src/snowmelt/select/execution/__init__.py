"""Query execution: workers process blocks, and a sink receives results in object order.

`engine`: opens a query, schedules blocks on the worker pool, streams payloads.
`block_executor`: WHERE and expressions for one block.
`serializer`: selected records as CSV or JSON.
`passthrough`: `SELECT *` by copying input records.
`sort_limit_aggregate`: LIMIT, DISTINCT, ORDER BY and aggregation over block results.
"""
