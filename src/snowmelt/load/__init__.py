"""Loading of files and streams: COPY statements, and the stack of source, filters and parser.

`copy_ast`: a COPY statement as data.
`copy_parser`: COPY text into a `CopyStatement`.
`planner`: a `CopyStatement` and the table's columns into the tasks of a load.
`portion`: input files and their split into portions.
`task`: what one task needs to run its portion, all of it picklable.
`phase_definition`: the parameters of sources, filters and parsers, and how each is built.
`phase_registry`: sources, filters and parsers by the names used in statements.
`library`: libraries of user code, loaded as isolated packages.
`stack`: one portion through source, filters, parser and expressions.
`phase_protocols`: the protocols of sources, filters and parsers, and the data that they exchange.
`sources`: where the bytes come from.
`kafka`: Kafka partitions as a source of records.
`filters`: bytes into bytes: decompression, encodings, replacement, external commands.
`parsers`: bytes or records into rows.
`column_converter`: columns of text or values into native columns of the table.
`arrow_text_casts`: texts that Arrow casts exactly, and the syntax of arrays.
`text_cells`: cells of delimited text, and their casts by kernels.
`projection`: parsed columns into the columns of the table.
`expressions`: computed columns of COPY, evaluated in DuckDB.
`udx`: execution of user-defined sources, filters and parsers.
`filter_tester`: checks that a user-defined filter does not depend on how its input is cut.
"""
