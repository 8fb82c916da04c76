"""Predictions against measured runs: fill in what a table leaves open, predict, score."""
