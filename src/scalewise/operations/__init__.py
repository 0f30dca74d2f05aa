"""Forward-only work on sensor data: no parameters, no loss, only results and how long they take."""
