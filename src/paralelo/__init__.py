"""How large neural networks are split over many devices: predict, run, compare."""
