"""Topics of Kafka as sources: messages with their lengths, read from offset to offset."""
