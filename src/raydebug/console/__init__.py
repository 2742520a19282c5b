"""The terminal debugger: pdb's own commands over the Debug Adapter Protocol."""
