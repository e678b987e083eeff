"""The demo: 336,776 real flights through the whole house, with a crash in the middle."""
