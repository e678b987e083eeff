"""Server side of Snowpipe Streaming: channels, registrations and the row API.

`channels`: configures clients; opens, checks and drops channels; evolves schemas for clients.
`channel_write_batcher`: groups small catalog writes of many clients into a few transactions.
`stage_locations`: upload locations and credentials for the blobs of a client.
`registration_structure_check`: structural checks of a registration, without any lookup.
`migration_backlog`: back-pressure for tables whose migration backlog exceeds the limit.
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
