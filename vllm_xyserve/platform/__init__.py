"""Choosing the xyserve platform, and its classes for each device family."""
