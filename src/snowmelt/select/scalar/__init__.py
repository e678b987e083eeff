"""Record-at-a-time evaluator: the reference semantics of all expressions.

`evaluator`: the value of an expression in one record.
`paths`: path steps into nested records.
`operators`: arithmetic, comparison and concatenation.
`casts`: CAST and conversion functions.
`functions`: scalar functions.
`like_patterns`: LIKE patterns.
`timestamp_formats`: format patterns of TO_STRING.
`aggregates`: aggregate accumulators.
`order_by`: sort keys and the sorter for ORDER BY.
"""
