"""The maths of acceptance: p, q and the residual, rounding to float16, noise from counters, sampling parameters.

Arrays in, arrays out; needs NumPy alone. Never here: messages, models, time.
"""
