"""Plans held against what hangs a run or shifts its loss: schedules of ours, and batches of other trainers."""
