"""JSON text: an exact reader, and a compiled scanner that locates values without decoding them.

The scanner and the column kernels accept a subset of what the exact reader accepts. The exact
reader reads everything else.

`exact`: exact parser and encoder, without loss of digits.
`scanner`: kernel that validates JSON objects and locates the values of chosen keys.
`intrinsics`: loads, stores and masks at an address, for kernels.
`columns`: kernels that convert located values to numbers and strings.
"""
