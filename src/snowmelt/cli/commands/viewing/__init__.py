"""Commands that show the state of a service.

`top`: the overview in a terminal.
`console`: open the console in a browser.
`loads`: the history of loads.
`migrations`: the history of migrations.
`listing`: the action `list` of both histories.
"""
