"""Engine, sinks, output."""
