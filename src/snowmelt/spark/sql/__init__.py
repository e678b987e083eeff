"""Analysis and planning of queries, and system views.

`query`: table references and needed columns in the text of a query.
`predicates`: conditions of a query for pruning.
`planner`: the files and chunks that a query opens.
`system_views`: history views and INFORMATION_SCHEMA.
"""
