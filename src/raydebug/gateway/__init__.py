"""The gateway: processes dial in on one port, clients (terminals, editors, HTTP) connect on the other.

Reading order: `__main__` (the process and its ports), `listener` and `handshake` (until a peer has proved the token),
`board` (the pauses), `processes` and `pause_lifecycle` (what dials in), `client` with `client_requests`, `forwarding`,
`path_map` and `root_session` (debuggers), `control` with `channel`, `ended`, `pause_requests` and `snapshots` (running
processes), `http`. `numbers`, `logs`, `throttle` and `background` serve them.
"""
