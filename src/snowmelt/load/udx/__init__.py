"""What runs classes written for another host: its buffers, its states, its calls."""
