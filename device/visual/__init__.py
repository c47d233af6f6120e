"""Which visual tokens the draft model sees: keywords, scores, selectors, and a picture of the choice."""
