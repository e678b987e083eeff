"""Numba kernels. They accept only NumPy arrays and positional arguments.

`json`: JSON object copier.
`strings`: string comparison, LIKE and ASCII case conversion.
`timestamps`: packing, field extraction and formatting of timestamps.
`output`: CSV and JSON record writers.
"""
