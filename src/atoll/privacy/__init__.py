"""Privacy on the channel: what may leave a party, and what the server may see of it."""
