"""What GPUs are: their chips and counters, their peaks, and what names of kernels tell.

The tables lie in `envcompare/data/`, each with its sources: `gpu_peaks.json` (data sheets, by row),
`ncu_metrics.json` (metrics that chips lack or count in parts, from NVIDIA's own lists) and
`nvprof_metrics.json` (NVIDIA's comparison of nvprof's metrics with those of Nsight Compute).
"""
