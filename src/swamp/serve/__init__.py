"""`swamp serve`: the command line as a process that stays: an API, events, webhooks, schedules.

Nothing of the web framework is imported here: `swamp.serve.run` is the door, and it says which extra is missing.
"""
