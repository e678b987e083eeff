"""Kafka topics into tables: in frames through COPY, or row by row through channels of a service.

`frames`: one COPY per frame.
`stream_options`: what a connector streams, and the names of topics, tables and channels.
`connector_settings`: settings of Snowflake's Kafka connector and of Kafka Connect, by their names.
`source_identity`: recognizes a topic or cluster that was replaced.
`message_reader`: messages of the partitions that a connector reads.
`message_rows`: messages as rows, with keys and metadata.
`schema_registry`: schemas by ID from a registry.
`registry_decoders`: Avro and Protobuf with these schemas.
`change_events`: change events of Debezium as rows.
`decoders`: the decoders of keys and values, from the options.
`dead_letters`: rejected messages for a topic of their own.
`connector`: streams topics, a channel for each partition.
`supervisor`: runs many connectors, with restarts and metrics.
"""
