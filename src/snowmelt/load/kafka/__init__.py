"""Kafka topics as load sources: messages are records, partitions are read by offset range.

`partition_ranges_and_results`: partition ranges, offset gaps, and the result of reading a partition.
`connection`: brokers, librdkafka settings, partition lists and offset bounds.
`consumer`: batches of messages from partitions until a bound is reached.
`source`: the source KafkaSource, with partitions as inputs and messages as records.
"""
