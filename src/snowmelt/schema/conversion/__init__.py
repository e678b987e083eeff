"""User values into stored columns: single values, rows, whole columns, and Arrow tables.

`value_rules`: one value into its stored value. This is the exact path, which defines the result.
`numbers`: FIXED, REAL and BOOLEAN values, and floats as decimal text.
`timestamps`: dates, times and timestamps, their text formats and range; foreign values.
`json_text`: JSON text, normalized or written from Python values.
`column_converter`: whole columns into Arrow arrays in chunk form.
`packed_input_columns`: plain columns as compact bytes until a flush.
`deferred_single_rows`: single rows that are checked immediately and converted in a batch.
`arrow_to_python`: Arrow values into equivalent Python values.
`arrow_input`: a user's Arrow arrays and tables into chunk form.
`default_values`: values of columns that rows lack.
`row_converter`: rows and Arrow tables into a table in chunk form, with all errors.
"""
