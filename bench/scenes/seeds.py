"""Which scenes are for what: three sets of seeds that share none. A scene that something was chosen on judges nothing.

Scenes that earlier drafts and settings were chosen on (100,000 to 399,999) belong to no set.
"""

#: `covspec train-pair` draws from these; its stages say how far.
TRAINING = range(1_000_000, 1 << 47)
#: Settings of any system are chosen on these: draft lengths, thresholds, gates.
TUNING = range(400_000, 500_000)
#: What is reported is measured on these, and nothing is chosen on them.
JUDGING = range(700_000, 800_000)
#: Those of the judging set that `covspec bench pair` asks; tables begin at the other end.
PAIR = JUDGING[90_000:90_300]
