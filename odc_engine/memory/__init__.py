"""What lies in a device's arena, and the two things peers do to it: gather and push."""
