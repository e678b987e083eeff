"""The command line `snowmelt`.

`main`: entry point: it finds and runs the subcommand, and prints errors.
`options`: options that all commands take.
`commands`: one module per subcommand.
`command_context`: settings, catalog, client and signal handling for commands.
`spark_session`: a local Spark session for commands.
`health_checks`: the checks of `snowmelt doctor`.
`output`: rows as a table, JSON or CSV.
`flights_demo`: the programs behind `snowmelt demo`.
"""
