"""FedRF-TCA (Feng et al., section IV, Algorithms 2 to 5): alignment by mean random features; no target labels."""

from fdamed.methods.fedrf_tca.method import FedRfTca as FedRfTca
