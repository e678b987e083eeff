"""Iceberg REST catalog: engines list and load tables with their fresh rows.

`authentication`: access tokens and the tokens of the service. `table_loader`: what loadTable returns.
`routes`: the HTTP routes and their errors.
"""
