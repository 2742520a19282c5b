"""What both sides of a question agree on."""

MARK = "raydebug-check: "
