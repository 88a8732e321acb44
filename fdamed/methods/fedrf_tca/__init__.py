"""FedRF-TCA (paper 002, section IV, Algorithms 2 to 5): alignment by mean random features; the target has no labels."""

from fdamed.methods.fedrf_tca.method import FedRfTca as FedRfTca
