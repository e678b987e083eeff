"""Execution of user-defined extensions (Vertica: UDx): sources, filters and parsers.

`vertica_sdk`: module that user code imports as `vertica_sdk`.
`phase_definitions`: definitions of phases, made from the objects of a library.
`instance`: life cycle, calls and returned states of one user-defined object.
`input_window`: the input buffer of a call, filled from bytes or records.
`sources`: user-defined sources.
`filters`: user-defined filters, and generators as filters.
`parsers`: user-defined parsers and chunkers.
`shared_progress_page`: shared memory page with the running step, and the limits of user code.
`worker_process`: worker processes for user code, and their main program.
"""
