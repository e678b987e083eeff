"""Commands that look at a service.

`console`: open the console in a browser.
"""
