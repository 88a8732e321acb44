"""When does which aggregation rule win? The FedGP paper's theory (section 4), as numbers from data."""
