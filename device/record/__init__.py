"""What is written down about an answer: events, bytes by kind, seconds by kind. Never here: decisions."""
