"""Rules of the repository as a whole: import order, documents that stay true, nothing that must not be published."""
