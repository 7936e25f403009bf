"""Thin worker subclasses: they install our layers before the model is built, and report them."""
