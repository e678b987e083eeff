"""The wire format of batches: headers, bodies and values, as pure functions of bytes.

`headers`: header names, and the headers of a call.
`messages`: request and response bodies.
`values`: conversion of values of each SQL type from and to JSON.
`compression`: compression and checksums of bodies.

The modules do no input or output.
"""
