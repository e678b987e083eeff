"""HTTP proxies between a caller and a service: fault injection, recording and replay.

`http1`: reading and encoding of HTTP/1.1 messages.
`relay`: the loopback HTTP server and the upstream service; the fault proxy, recording and replay.
`faults`: named faults, and the requests they apply to.
"""
