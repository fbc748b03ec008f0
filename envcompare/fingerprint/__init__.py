"""Compare what two workers found around themselves: what differs, who feels it, what it means."""
