"""What the user chose and what the environment is, read strictly from files."""
