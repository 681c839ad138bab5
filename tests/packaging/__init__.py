"""What is in ``packaging/``: units of systemd, man pages, completions."""
