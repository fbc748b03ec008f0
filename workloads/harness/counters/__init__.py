"""Host and processor counters, NVML, power, and the roofs of a device."""
