"""Analysis and planning of queries, and system views.

`table_references`: table references and needed columns in the text of a query.
`predicates`: pruning predicates from the conditions of a query.
`read_planner`: the files and chunks that a query opens.
`table_functions`: the table function COPY_HISTORY.
`system_views`: history views and INFORMATION_SCHEMA.
"""
