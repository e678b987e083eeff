"""Commands that prove what is stored.

`check`: check tables while everything runs.
`trace`: show the way of a token, chunk, file, load or row.
"""
