"""What the program answers, one file per kind: its record, how it is made, and how it is read."""
