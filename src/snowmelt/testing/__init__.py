"""What is shipped for tests of yours and ours: loads that are killed, and counts of what is left."""
