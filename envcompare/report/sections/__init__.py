"""The sections of the page, each made of what analysis gives."""
