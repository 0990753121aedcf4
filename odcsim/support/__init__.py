"""What everything else stands on: files written whole or not at all, inputs believed in nothing, words, progress."""
