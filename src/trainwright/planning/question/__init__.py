"""What is asked: the question, the layouts and the families that may answer it."""
