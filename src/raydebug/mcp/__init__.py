"""Tools for agents, over the Model Context Protocol: pauses, values, breakpoints, stacks, diagnoses, snapshots.

Only `raydebug.mcp.tools` needs the extra raydebug[mcp].
"""
