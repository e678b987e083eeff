"""What `snowmelt doctor` looks at."""
