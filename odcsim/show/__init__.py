"""What people open: pages that are written, and pages that answer."""
