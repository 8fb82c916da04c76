"""The terminal: options in, one document or one table out."""
