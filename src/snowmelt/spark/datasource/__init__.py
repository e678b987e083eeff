"""`format("snowmelt")`: read, stream, write."""
