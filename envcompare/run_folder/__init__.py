"""The waist of the house: what a run folder holds, and how it is read and written."""
