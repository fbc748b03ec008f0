"""Charts declared with Altair and drawn to static SVG, for the page and for papers."""
