"""The report: view data, sentences, and the page drawn from comparison.json."""
