"""Reading ahead what a command will read: model shards, data, into the page cache of the machine that runs it."""
