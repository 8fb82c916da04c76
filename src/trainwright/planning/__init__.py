"""From a question to the best plan, in five rooms: question, bounds, splits, search, reasons."""
