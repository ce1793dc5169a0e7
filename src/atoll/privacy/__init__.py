"""Protocol mathematics: secure totals, noise, and the accounting of what was released."""
