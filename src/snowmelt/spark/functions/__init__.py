"""External functions in a Spark session.

`call_rewriter`: function calls in the text of a query.
`copy_history`: the table function COPY_HISTORY in the text of a query.
`registry`: registration of functions in the session, with their SQL types and expressions.
`worker`: execution of calls in Spark's Python workers.
`call_log`: call records, written by workers and read by the driver as a DataFrame.
`call_estimates`: estimates of calls from Spark's plan.
"""
