"""The search for the best plan: candidates in order of their bounds."""
