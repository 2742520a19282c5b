"""Where Ray runs: this machine, containers, or a Ray cluster that runs already.

Reading order: `state` (the record of a cluster), `find` (a cluster by its name), `kinds` (what can be seen and done of
it), `runner` (where its programs run), `dashboard` (Ray, over HTTP), `up` (options and ports of a start). Then each
kind: `local` with `supervisor`, `environment` and `ray_node`; `compose`; `joined` with `head_requests`, `joined_job`,
`tunnel`, `connection`, and `working_folder` with `known_folders`. For several hosts: `keeper` (Ray and the gateway of
one host, as `supervisor` and `node` keep them), `node` (the program on each), `rendezvous` (how nodes find their head),
`node_cluster` (joins them by their folder), `slurm`.
"""
