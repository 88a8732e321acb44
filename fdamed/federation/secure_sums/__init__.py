"""Secure aggregation (Bonawitz et al. 2017): masked answers, of which the server learns only weighted sums."""
