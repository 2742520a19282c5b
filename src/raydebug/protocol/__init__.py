"""Variables, messages and records that both ends of a connection use. Standard library only; imports no other room."""
