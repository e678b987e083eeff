"""Loading of Kafka topics: in frames through COPY, or row by row through channels of a service.

`frames`: loading in frames, with one COPY per frame.
`stream_options`: options of a connector, and the names of topics, tables and channels.
`connector_settings`: settings of a connector, with the names of Snowflake's and Kafka Connect's.
`source_identity`: detection of a replaced topic or cluster.
`message_reader`: reader of the partitions of a connector.
`message_rows`: conversion of messages to rows, with keys and metadata.
`schema_registry`: client that fetches schemas by ID.
`registry_decoders`: decoders of Avro and Protobuf messages with schemas of a registry.
`change_events`: conversion of Debezium's change events to rows.
`decoders`: choice of the decoders of keys and values by the options.
`dead_letters`: producer of rejected messages for a separate topic.
`connector`: streaming of topics, with a channel for each partition.
`supervisor`: execution of many connectors, with restarts and metrics.
"""
