"""Pages of the console; each module lists its routes.

`routes`: paths and their pages.
`actions`: pages that wait for other processes, or change something.
`overview`: is anything wrong, and how fresh are the rows.
`channels`: the list of channels, and one channel.
"""
