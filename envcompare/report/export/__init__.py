"""What leaves the report beside its page: tables, figures, summaries."""
