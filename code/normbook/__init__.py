"""The book's own code: `engine` (what is studied), `lab` (what measures), `press` (what prints)."""
