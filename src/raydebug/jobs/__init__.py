"""Jobs on a cluster: submitted, followed, their logs read, each run recorded in a folder of its own.

Reading order: `submit` (a command becomes a Ray job) with `stop_options`, `follow` (the job in the terminal) with
`follower` and `resource_requests`, `recorder` (its record) with `phases`, `memory_samples` and `span_log`, `deaths`
with `certificate` (who ended a process), `pace` (how often they look), `logs` (what its processes wrote).
"""
