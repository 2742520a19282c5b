"""The Debug Adapter Protocol: one conversation over a TCP connection."""
