"""Numba kernels, which take NumPy arrays and positional arguments.

`delimiter_masks`: 64-byte bit masks, the base of the scanning kernels.
`csv`: CSV tokenizer, record counter and UTF-8 validation.
`json`: JSON object copier.
`numbers`: integers and floats from strings.
`strings`: string comparison, LIKE, ASCII case conversion.
`timestamps`: fields and texts of packed timestamps.
`output`: CSV and JSON record writers.
"""
