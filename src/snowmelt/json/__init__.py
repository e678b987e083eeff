"""JSON text: one exact reader, and one compiled scanner that finds values without decoding them.

The scanner and the column kernels accept less than the exact reader and never more; what they
leave alone the exact reader reads.

`exact`: exact parser and encoder, without loss of digits.
`scanner`: kernel that validates JSON objects and locates the values of chosen keys.
`intrinsics`: loads, stores and masks at an address, for kernels.
`columns`: kernels that turn located values into numbers and strings.
"""
