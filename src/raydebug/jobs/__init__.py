"""Jobs on a cluster: submitted, followed, their logs read, each run recorded in a folder of its own."""
