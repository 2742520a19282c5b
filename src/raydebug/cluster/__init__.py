"""Where Ray runs: this machine (local.py), found again by name (state.py), asked over HTTP (dashboard.py)."""
