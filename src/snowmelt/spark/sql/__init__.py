"""Analysis and planning of queries, and system views.

`table_references`: table references in the text of a query, and the columns it needs.
`predicates`: predicates for pruning, from the conditions of a query.
`read_planner`: plan of the files and chunks that a query opens.
`cursor`: names, brackets and lists in tokens, and a cursor for DML.
`typed_values`: VALUES whose rows differ in type.
`system_views`: history views and INFORMATION_SCHEMA.
"""
