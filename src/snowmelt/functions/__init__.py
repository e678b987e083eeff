"""External functions: what a call is, how a batch travels, and the kit that answers.

`snowmelt.functions.service` needs neither Spark nor a database nor a web framework.
"""
