"""HTTP server: wiring, authentication, middleware and background workers.

`settings_validation`: rejects invalid combinations of settings at the start.
`lifecycle`: start, run and graceful shutdown of a service.
`app`: construction of all components and of the ASGI application.
`listener`: listening sockets, the uvicorn server and its TLS certificate.
`fast_path`: HTTP protocol for small requests, without a task per request; responses from threads.
`middleware`: checks of every request and dispatch to the fast routes.
`auth`: authentication by key-pair JWT, OAuth token or access key.
`streaming_routes`: the streaming v1 API and schema evolution.
`statement_routes`: the statement API, SQL over HTTP.
`query_process`: processes that run queries of the statement API, with limits.
`request_process`: child processes that respond to requests.
`rows`: the row API (streaming v2).
`s3`: the S3 endpoint.
`iceberg`: the Iceberg REST catalog.
`object_source`: objects of buckets as input of the select engine.
`console`: the web console.
`publisher_process`: the process that publishes snapshots for engines, and its supervisor.
`file_pipe_routes`: Snowpipe's REST API of pipes that load files.
`file_pipe_process`: the process that loads the files of pipes, and its supervisor.
`error_responses`: converts errors to HTTP responses.
`sts_stage_locator`: STS credentials for direct uploads to the bucket of the stage.
`monitoring_routes`: `/healthz` and `/metrics`.
`metrics`: metrics in Prometheus text format.
`background_work`: the migrator process, heartbeat, housekeeping and release of unused memory.
`child_process`: start and stop of child processes, and their exit with the service.
`logs`: log formats and redaction of secrets.
"""
