"""What device and edge share; knows neither side.

Rooms, lowest first: `maths`, `input`, `protocol`, `models`, and `radio` beside them. `errors` and `clock` belong to
every room; `settings`, `flags` and `command` make a command of a settings class. Imported from here: anything but a
name that begins with an underscore. Never here: what only one side needs, and what only measures.
"""
