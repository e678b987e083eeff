"""Numba kernels over texts that several packages share; their arguments are positional.

`slices`: the arrays that kernels take, and texts as ranges of one buffer.
`delimiter_masks`: 64-byte bit masks, the base of the scanning kernels.
`csv`: CSV tokenizer, record counter and UTF-8 validation.
`cells`: NULLs, unquoted values and booleans of a column of delimited text.
`csv_tokenizer`: positions of records and fields in a CSV block, by configurable rules.
`numbers`: integers, decimals and floats from strings.
`timestamps`: ISO timestamps, packed into words, and days.
"""
