"""What is written for people to open: self-contained pages, and traces for ui.perfetto.dev."""
