"""The one door to every pause: processes dial in on one port, clients (terminals, editors, HTTP) come by another."""
