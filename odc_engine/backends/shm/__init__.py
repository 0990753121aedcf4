"""Processes of one machine that share memory."""
