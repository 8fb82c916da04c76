"""Frameworks of training: what their files and scripts say."""
