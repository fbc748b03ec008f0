"""Execute the plan over hosts and cells, record what happens, resume."""
