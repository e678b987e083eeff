"""Users, roles, grants, keys."""
