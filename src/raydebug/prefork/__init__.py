"""Pre-forked processes: they have the heavy imports done, and a job's processes are forked from them.

`hand_over` runs in every Python below the cluster and hands its start over; `server` owns the pool and distributes the
starts; a `zygote` has the packages imported and forks; `forked_process` turns a fork into the process that was started.
Standard library only.
"""
