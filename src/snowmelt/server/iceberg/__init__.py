"""Iceberg REST catalog, with which other engines list, load and change tables.

`authentication`: access tokens, and other tokens of the service.
`table_loader`: the response to loadTable.
`commit_request`: parser of commit requests.
`idempotent_requests`: responses to repeated requests.
`commit_process`: child processes that commit.
`routes`: the HTTP routes and their errors.
"""
