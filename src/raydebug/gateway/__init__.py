"""The gateway: processes dial in on one port, clients (terminals, editors, HTTP) connect on the other."""
