"""The console: HTML pages under `/console`, on the port of the service.

Functions render the pages, without a template engine, a build step or external resources. The console
has its own threads and a time limit for each read, so it does not delay ingest.

`app`: the ASGI application, with checks, login, pages, live regions and JSON.
`request`: input of a page, with session, visible objects, catalog and parameters.
`sessions`: sealed cookies, login codes, logout.
`request_guard`: Host, Origin, forms and security headers.
`login`: login by access key or code, and access without login on this machine.
`json_api`: the views as JSON.
`live`: server-sent events with changed regions.
`layout`: document, tables, figures, charts and forms of pages.
`markup`: HTML elements with escaped text.
`assets`: style sheet and script, in the folder `static`.
`workers`: child processes for SELECTs, replays, traces and call logs.
`worker_process`: main module of such a process.
`object_preview`: first records and columns of an object.
`check_runner`: runs `doctor` and `check` in child processes, and caches their results.
`findings`: finds problems, and describes them in sentences with a remedy.
`site_findings`: finds problems of a failover group.
`pages/`: the pages.
"""
