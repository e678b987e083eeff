"""Vectorized expression evaluation over the columns of a batch.

`operands_and_frames`: record frames, and constants and vectors as operands.
`operators`: vectorized arithmetic, comparison and LIKE.
`functions`: vectorized casts, date parts and ASCII string functions.
`evaluator`: computes the values of an expression in a frame, and the deferred rows.
"""
