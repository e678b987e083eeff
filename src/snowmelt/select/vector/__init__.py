"""Vectorized expression evaluation over columns of a batch.

`operands_and_frames`: record frames, constants and vectors as operands.
`operators`: vectorized arithmetic, comparison and LIKE.
`functions`: vectorized casts, date parts and ASCII string functions.
`evaluator`: expressions over a frame, with the rows that are deferred.
"""
