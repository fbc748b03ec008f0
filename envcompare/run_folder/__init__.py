"""The run folder: the files of a run, and how they are read and written."""
