"""Where proposals come from: one file per kind of draft."""
