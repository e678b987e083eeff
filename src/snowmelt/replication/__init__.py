"""Replication of an installation to other sites, and failover.

A follower requests the changes since its last state from the primary. It first copies the objects
that the changes refer to, then applies the changes in one transaction. Each state of a follower is
therefore an earlier state of the primary, and all objects of that state exist at the follower.

`protocol`: messages between sites.
`state_export`: exports states of a primary.
`object_copy`: copies and verifies the objects that a state refers to.
`state_import`: imports a state into the catalog of a follower.
`follower`: background work of a site in its group.
"""
