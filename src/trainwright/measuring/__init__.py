"""Edges that run things: what a schedule really computes, and how long it really takes."""
