"""Numba kernels over texts that several packages share; their arguments are positional.

`slices`: the arrays that kernels take, and texts as places in one buffer.
`delimiter_masks`: 64-byte bit masks, the base of the scanning kernels.
`csv`: CSV tokenizer, record counter and UTF-8 validation.
`cells`: NULLs, values without quotes and booleans of a column of delimited text.
`csv_tokenizer`: record and field positions in a CSV block, by rules.
`numbers`: integers, decimals and floats from strings.
`timestamps`: ISO timestamps, packed into words, and days.
"""
