"""The sections of the page, each built from the results of the analysis."""
