"""What a column and a value are."""
