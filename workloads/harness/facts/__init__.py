"""What a worker finds around itself."""
