"""Say what is wrong: read the logs of a run, find the first cause by rules, and give its fix."""
