"""The `dspark` command: one file per sub-command; parses, calls the library, prints."""
