"""Jobs that bring rows into tables: COPY, Kafka streams, file tailing and error replay.

`copy_job`: one COPY statement, from planning to the commit.
`file_watch`: files that appear in folders and stores, each loaded once, in batches.
`file_pipe_check`: check of a COPY that loads files as they appear.
`schema_inference`: columns of files for a table that does not exist.
`load_task_execution`: one portion of a load into native files, and the threads that run portions locally.
`arrow_conversion`: Arrow columns into native form.
`row_and_reject_files`: rows and rejects of a portion into native files.
`engine_commit`: commits of other engines through the Iceberg REST catalog.
`load_result_check`: the results of all portions into totals and the decision whether to commit.
`reject_publisher`: rejected records into a reject table, reject files or the error table.
`kafka`: Kafka topics into tables, row by row through channels or frame by frame through COPY.
`file_tail`: growing files into a table, one channel per file.
`error_replay`: rejected rows of an error table inserted again.
"""
