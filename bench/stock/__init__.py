"""The faults of docs/faults.toml on stock Ray and debugpy, with nothing of raydebug in the cluster's environment."""
