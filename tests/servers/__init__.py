"""Object stores for our tests: real servers as processes, doubles inside the process, a proxy in between."""
