"""HTTP proxies between a caller and a service: fault injection, recording and replay.

`http1`: HTTP/1.1 messages, read and encoded.
`relay`: the loopback HTTP server and the upstream service; the fault proxy, recording and replay.
`faults`: faults by name, and the requests they apply to.
"""
