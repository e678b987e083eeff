"""The wire format of batches: headers, bodies and values, as pure functions of bytes.

`headers`: header names, and the headers of a call.
`messages`: request and response bodies.
`values`: values of each SQL type, from and to JSON values.
`compression`: compression and checksums of bodies.

No module here does input or output.
"""
