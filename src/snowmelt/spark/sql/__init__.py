"""Analysis and planning of queries, and system views.

`table_references`: table references in the text of a query, and the columns it needs.
`predicates`: predicates for pruning, from the conditions of a query.
`read_planner`: plan of the files and chunks that a query opens.
`table_functions`: the table function COPY_HISTORY.
`system_views`: history views and INFORMATION_SCHEMA.
"""
