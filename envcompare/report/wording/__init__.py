"""Words of the report: verdicts, names and labels."""
