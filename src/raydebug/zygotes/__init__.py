"""A warm cluster: processes that have the heavy imports done, from which a job's processes are forked.

Three parts: `ask` runs in every Python below the cluster and hands a start over; `keeper` is the pool's door and
accounts; a `zygote` has the packages imported and forks. The standard library only.
"""
