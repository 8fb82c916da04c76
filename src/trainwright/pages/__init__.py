"""Results as pages: one self-contained file, pictures of schedules, and the same live."""
