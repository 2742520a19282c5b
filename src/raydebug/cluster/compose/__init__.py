"""Clusters in containers: `docker compose` and the Docker engine."""
