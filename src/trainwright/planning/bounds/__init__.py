"""How fast a plan can be at best, before any split is known."""
