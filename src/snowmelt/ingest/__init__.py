"""Server side of Snowpipe Streaming: channels, registrations and the row API.

`channels`: client configuration; opening, checking and dropping channels; schema evolution by clients.
`channel_write_batcher`: groups small catalog writes of many clients into a few transactions.
`stage_locations`: upload locations and credentials for the blobs of a client.
`registration_structure_check`: structural checks of a registration, without any lookup.
`migration_backlog`: tables whose migration backlog exceeds the limit.
`registration_verifier`: checks registrations against the stage; caches immutable catalog data.
`decoder_pool`: child processes that decode blobs.
`blob_decoder`: reads, decrypts and decodes blobs.
`chunk_content_check`: full check of a decrypted chunk and its statistics.
`stage_sync`: sync of the stage before a commit.
`registrar`: group commit of registrations and their responses.
`batch_worker_pool`: batching queue and worker threads.
`metrics`: counters and latencies of registrations and row requests.
`rows`: the row API, from request bodies to registered chunks.
"""
