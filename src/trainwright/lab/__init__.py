"""What runs for real: layers timed, schedules replayed, predictions held against measured runs."""
