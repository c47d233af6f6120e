"""What device and edge share: the maths, the wire, models and images; knows neither side."""
