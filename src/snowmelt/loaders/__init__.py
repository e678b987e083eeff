"""Jobs that load rows into tables: COPY, Kafka streams, file tailing and error replay.

`copy_job`: executes one COPY statement, from planning to the commit.
`copy_validation`: returns rows or errors of files instead of loading them (VALIDATION_MODE).
`file_statements`: runs any statement that reads files.
`file_watch`: loads new files in folders and stores, each once, in batches.
`folder_events`: events of local folders, from inotify.
`file_pipe_check`: validates a COPY that loads files as they appear.
`schema_inference`: infers the columns of a new table from files.
`load_task_execution`: loads one portion into native files; runs portions in local threads.
`arrow_conversion`: converts Arrow columns to native form.
`row_and_reject_files`: writes rows and rejects of a portion to native files.
`engine_commit`: applies commits of other engines through the Iceberg REST catalog.
`load_result_check`: combines the results of all portions, and decides whether the load may commit.
`reject_publisher`: writes rejected records to a reject table, reject files or the error table.
`kafka`: loads Kafka topics, through channels or in frames with COPY.
`file_tail`: streams growing files into a table, one channel per file.
`error_replay`: inserts the rejected rows of an error table again.
"""
