"""The command line `snowmelt`.

`main`: entry point; finds and runs the subcommand, and prints errors.
`commands`: one module per subcommand.
`command_context`: shared options, and the objects that commands create from them.
`spark_session`: a local Spark session for commands.
`output`: rows as a table, JSON or CSV.
`flights_demo`: the programs behind `snowmelt demo`.
"""
