"""User values → stored columns."""
