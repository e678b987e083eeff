"""HTTP proxies between a caller and a service: fault injection, recording and replay.

`http1`: reading and encoding of HTTP/1.1 messages.
`relay`: the loopback HTTP server, and the proxies that inject faults, record and replay.
`faults`: named faults, and selection of the requests to which they apply.
"""
