"""HTTP proxies between a caller and a service: fault injection, recording and replay.

`http1`: HTTP/1.1 messages, read and encoded.
`relay`: the loopback HTTP server, the upstream service and the fault proxy.
`faults`: faults by name, and the requests they apply to.
`recorder`: recording of requests with their responses, and replay.
"""
