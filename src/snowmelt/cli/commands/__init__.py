"""The subcommands of `snowmelt`, one module per command.

`init`: set up an installation.
`serve`: run the service.
`user`: add users, create access keys.
`cert`: create a certificate authority and a server certificate.
`settings`: list the settings and the sources of their values.
`sql`: run SQL statements.
`copy`: run a COPY statement.
`load`: check a user's load filter.
`kafka`: load messages from Kafka.
`tail`: stream lines of growing files.
`replay`: insert rejected rows again.
`migrate`: convert chunks into native files.
`maintain`: compact native files, expire snapshots and channels, collect garbage.
`backups`: back up an installation, restore a backup.
`select`: run a SELECT on a file or S3 object.
`functions`: serve, call, record, replay and fault-inject external functions.
`channels`: list and drop channels.
`chunks`: list and discard quarantined chunks.
`metadata`: print the Iceberg metadata location of tables.
`status`: print a summary of service, catalog, backlog and last commit.
`doctor`: check an installation.
`integrity`: check stored data, and trace rows.
`upgrade`: upgrade the catalog.
`demo`: run the demo.
`viewing`: commands that show the state of a service.
`warm`: compile the kernels in advance.
`completion`: print the completion script of a shell.

Each module has NAME, SUMMARY, EXAMPLES, `add_arguments(parser)` and `run(options)`.
"""
