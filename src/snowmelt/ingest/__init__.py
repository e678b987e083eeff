"""The receiving half of streaming: channels and registration."""
