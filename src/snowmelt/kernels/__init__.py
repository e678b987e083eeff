"""Numba kernels for text that several packages use. Arguments are positional.

`slices`: arrays for kernels, and strings as ranges of one buffer.
`delimiter_masks`: bit masks of 64 bytes, for the scanning kernels.
`csv`: CSV tokenizer and record counter.
`cells`: NULLs, unquoted values and booleans of a column of delimited text.
`csv_tokenizer`: positions of records and fields in a CSV block, and UTF-8 validation.
`numbers`: integers, decimals and floats from strings.
`timestamps`: ISO timestamps, packed into words, and days.
"""
