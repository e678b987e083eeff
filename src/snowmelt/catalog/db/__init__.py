"""Engine, transactions, upgrades."""
