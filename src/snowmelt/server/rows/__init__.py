"""Row API over HTTP: the endpoints that the official high-performance SDK calls.

`components`: construction of the row API, and its limits.
`routes`: the endpoints.
`requests_and_errors`: requests, paths, and error responses of the row API.
`scoped_tokens`: tokens that `/oauth/token` issues.
`row_files`: files of rows that are too large for a request.
`in_flight_appends`: append requests in flight, and the fast path for small requests.
"""
