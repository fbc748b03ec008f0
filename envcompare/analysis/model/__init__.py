"""The types that connect analysis and report."""
