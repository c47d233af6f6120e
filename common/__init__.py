"""What device and edge share; knows neither side.

Rooms, lowest first: `maths`, `input`, `protocol`, `models`, and `radio` beside them. `errors`, `clock` and `command`
belong to every room. Imported from here: anything but a name that begins with an underscore. Never here: what only
one side needs, and what only measures.
"""
