"""Set-up, model preparation and the demo server behind the Makefile. Not part of the library."""
