"""Commands for the integrity of stored data.

`check`: check tables while the system runs.
`trace`: trace a token, chunk, file, load or row.
"""
