"""Task tables: a step's attention cut into tiles, ordered by load and dealt to cores; pure."""
