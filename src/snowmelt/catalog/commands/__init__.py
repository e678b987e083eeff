"""Statement execution (as PostgreSQL's `commands/`)."""
