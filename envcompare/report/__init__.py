"""The report: plain view data, the sentences, and the page drawn from comparison.json."""
