"""How numbers, units and Markdown are written."""
