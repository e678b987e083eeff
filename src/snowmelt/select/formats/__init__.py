"""CSV, JSON, Parquet objects → blocks → batches."""
