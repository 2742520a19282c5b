"""What an editor needs to reach the pauses: its configuration, and a relay that knows the token."""
