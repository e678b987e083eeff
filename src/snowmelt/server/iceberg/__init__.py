"""Iceberg REST catalog: engines list and load tables with their fresh rows.

`authentication`: access tokens and the tokens of the service. `table_loader`: what loadTable returns.
`commit_request`: the request of a commit. `commit_process`: commits in processes of their own.
`routes`: the HTTP routes and their errors.
"""
