"""What crosses the wire: messages as plain dataclasses, their form as protobuf, and how an end is reached and
trusted.

`messages` is what the rest of the program speaks; `wire` alone knows protobuf. Never here: what a message makes an
end do.
"""
