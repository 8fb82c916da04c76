"""What callers may say: options of every command, and the questions that they ask."""
