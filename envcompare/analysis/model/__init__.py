"""The types that analysis gives and the page reads."""
