"""The console: pages for people under `/console`, on the port of the service.

Pages are made here as HTML, without a template engine, a build step, or anything from outside the
machine. It has threads of its own and limits on each reading, so that it never holds up ingest.

`app`: requests: checks, login, pages, live regions, JSON.
`request`: what a page may use: session, visibility, catalog, parameters.
`sessions`: sealed cookies, login codes, logout.
`request_guard`: Host, Origin, forms and security headers.
`login`: the ways in: access key, code, open on this machine.
`json_api`: the views as JSON.
`live`: server-sent events with the regions that changed.
`layout`: the frame of each page, tables, figures and charts.
`markup`: HTML that escapes what it shows.
`assets`: style sheet and script, in the folder `static`.
`workers`: processes of their own for SELECTs, replays and traces.
`worker_process`: what such a process does.
`check_runner`: runs `doctor` and `check` in processes of their own, and keeps their results.
`findings`: what is wrong, each as a sentence with a remedy.
`pages/`: the pages.
"""
