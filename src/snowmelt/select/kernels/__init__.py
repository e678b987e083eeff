"""Numba kernels, which take NumPy arrays and positional arguments.

`json`: JSON object copier.
`strings`: string comparison, LIKE, ASCII case conversion.
`timestamps`: fields and texts of packed timestamps.
`output`: CSV and JSON record writers.
"""
