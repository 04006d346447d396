"""WIRING: definitions, jobs, the command line, the demo. No logic of a stage, no rule of time."""
