"""A session with one host: connect, claim, prepared arms, workspace, sweep."""
