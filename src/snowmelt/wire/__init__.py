"""Messages of each HTTP conversation, data only."""
