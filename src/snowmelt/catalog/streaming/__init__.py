"""Streaming ingestion: channels, chunks and the commit protocol.

`channels`: open, find, drop and expire channels.
`commit_rules`: commit decisions on offered chunks, without database access.
`registration`: registers chunks in one transaction; client prefixes; unregistered blobs.
`row_request_state`: state of channels and requests of the row API.
`client_rejections`: rows that classic clients reject themselves.
`chunks`: registered chunks, backlog, quarantine and retirement.
"""
