"""Replication of an installation to other sites, and failover.

A follower asks the primary for the difference to the state that it has, copies the objects that the
difference names, and applies it in one transaction. So each state of a follower is a state that the
primary had, and all objects of it are there.

`protocol`: messages between sites.
`state_export`: states of a primary.
`object_copy`: objects that a state names, verified.
`state_import`: a state into the catalog of a follower.
`follower`: the work of a site in its group.
"""
