"""Analysis and planning of queries, system views."""
