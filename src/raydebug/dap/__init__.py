"""The Debug Adapter Protocol: wire.py frames messages, session.py holds one conversation."""
