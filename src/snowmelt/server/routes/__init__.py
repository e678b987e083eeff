"""One module per conversation: messages in, messages out, no rules of the domain."""
