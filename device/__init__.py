"""The device: drafts an answer, asks the edge to verify it, corrects and commits.

Rooms, lowest first: `record`, `drafting`, `lengths`, `visual`, `line`, `branching`, and `fleet`, which runs many
devices at once. The files beside them put the rooms together; `client` is the command. Imports `common`, never `edge`
or `bench`.
"""
