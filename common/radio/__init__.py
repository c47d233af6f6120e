"""A wireless link: fading channels, the rates that they allow, shapers that hold bytes back, payloads in bits.

Times in seconds, rates in bits a second, bandwidth in hertz. Never here: sockets; what shapes real bytes is
`bench/link`.
"""
