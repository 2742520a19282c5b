"""What raydebug costs and how fast it answers, measured beside stock Ray and debugpy; results in RESULTS.md."""
