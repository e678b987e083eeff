"""Loading of files and streams with COPY, through a stack of source, filters and parser.

`copy_ast`: syntax tree of a COPY statement.
`copy_parser`: parser of COPY statements.
`copy_into_parser`: parser of Snowflake's COPY INTO, with the same syntax tree.
`planner`: planning of the tasks of a load.
`portion`: input files and their split into portions.
`task`: picklable description of one task.
`phase_definition`: definitions of sources, filters and parsers with their parameters.
`phase_registry`: registry of sources, filters and parsers by name.
`library`: libraries of user code, imported as isolated packages.
`stack`: execution of one portion through source, filters, parser and expressions.
`phase_protocols`: protocols of sources, filters and parsers, and the data they exchange.
`sources`: built-in sources: files, URLs, objects and standard input.
`kafka`: Kafka partitions as a source of records.
`filters`: built-in filters (decompression, encodings, replacement, commands, Kafka messages).
`parsers`: parsers of bytes or records into rows.
`column_converter`: conversion of text and value columns to native columns of the table.
`arrow_text_casts`: exact casts of text by Arrow, and the syntax of arrays.
`text_cells`: compiled casts of the cells of delimited text.
`projection`: conversion of parsed columns to the table's columns.
`file_metadata`: columns about the file of each row, for expressions.
`expressions`: computed columns of COPY, evaluated in DuckDB.
`udx`: execution of user-defined sources, filters and parsers.
`filter_tester`: test that a user-defined filter's output does not depend on input chunking.
"""
