"""The engine that runs odcsim's schedules on real devices."""
