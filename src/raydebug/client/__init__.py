"""Asks a gateway: the only way from the host to a process of a job."""
