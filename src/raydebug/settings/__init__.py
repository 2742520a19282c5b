"""`.env`, flavours with their locks, debugger modes, and how raydebug reads and writes files."""
