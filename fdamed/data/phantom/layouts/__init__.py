"""One file for each data set that a phantom can imitate: its domains, what its studies show, its files and tables."""
