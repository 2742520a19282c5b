"""Where the memory of a job is: a look at all its processes, and what grows between looks."""
