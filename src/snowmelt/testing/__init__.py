"""What is shipped for users' tests."""
