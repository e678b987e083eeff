"""External functions in a Spark session."""
