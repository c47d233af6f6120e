"""The edge: verifies the drafts of many devices in batches, and plans their rounds.

Rooms, lowest first: `planning`, `batching`, `scheduling`, and `listening` beside them. The files beside them put the
rooms together; `server`, `schedule_server` and `plan_command` are commands. Imports `common`, never `device` or
`bench`.
"""
