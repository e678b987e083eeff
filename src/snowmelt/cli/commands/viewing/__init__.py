"""Commands that look at a service.

`top`: the overview in a terminal.
`console`: open the console in a browser.
`loads`: the history of loads.
`migrations`: the history of migrations.
`listing`: what the lists share.
"""
