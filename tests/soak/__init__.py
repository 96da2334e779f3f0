"""Many schedules of the models, in one process, counted: `python -m tests.soak`."""
