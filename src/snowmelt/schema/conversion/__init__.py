"""Conversion of user values to stored columns: single values, rows, columns and Arrow tables.

`value_rules`: conversion of one value. This is the exact path, which defines the result.
`numbers`: conversion of FIXED, REAL and BOOLEAN values, and floats as decimal text.
`timestamps`: conversion of dates, times and timestamps, with their text formats and range.
`json_text`: JSON text, normalized or written from Python values.
`column_converter`: conversion of whole columns to Arrow arrays in chunk form.
`packed_input_columns`: columns of common values, packed as bytes until a flush.
`deferred_single_rows`: single rows that are checked immediately and converted in a batch.
`arrow_to_python`: conversion of Arrow values to equivalent Python values.
`arrow_input`: conversion of a user's Arrow arrays and tables to chunk form.
`default_values`: values of columns that rows lack.
`row_converter`: conversion of rows and Arrow tables to a table in chunk form, with all errors.
"""
