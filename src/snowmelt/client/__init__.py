"""The Python SDK: converts rows to chunks, uploads them as blobs to the stage, and registers them.

`client`: public `Client`, which opens channels and commits their rows in the background.
`settings`: options of a client, their defaults and validation.
`auth`: OAuth and key-pair tokens for the service.
`connection`: creates the transport from the arguments of a client.
`sites`: finds the primary among several addresses, and notices when it changes.
`transport`: HTTP requests to the service with kept-alive connections, tokens and retries.
`service_requests`: configure, open, status, evolve and drop requests.
`async_client`: the client and its channels for asyncio.
`channel`: public `Channel`, which validates and converts inserted rows.
`channel_state`: state of an open channel; checks of offset tokens and table names.
`schema_refresh`: refresh and evolution of a channel's schema after its table was altered.
`error_table_writer`: writes rejected rows to error tables.
`row_buffer`: rows of one channel between insert and flush, and their conversion to tables.
`flush_scheduling`: uncommitted rows of all channels, flush scheduling and memory limits.
`flusher`: background threads that encode, stage and register flushes.
`blob_builder`: builds chunks and blobs, and uploads the blobs to the stage.
`stage`: uploads to a local folder or an S3 bucket.
`registrar`: registration of staged chunks, retries and rejections.
`counters_and_metrics`: status of channels and clients; OpenTelemetry metrics.
`source_streaming`: streams sources with positions into a channel, each row exactly once.
`statements`: public `StatementClient`, which runs SQL statements over HTTP.
`console`: reads the JSON API of the console, for commands.
`line_source`: files of lines as a source for `source_streaming`.
"""
