"""The passes that measure: start-up and lockstep, and the client of the worker protocol."""
