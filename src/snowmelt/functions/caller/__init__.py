"""The caller: rows in Arrow columns become batches, calls, and values, on whatever machine runs it.

No Spark here: the spark room hands over columns and takes arrays.
"""
