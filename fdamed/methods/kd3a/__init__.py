"""KD3A (Feng et al., ICML 2021): the target learns, without labels, from what the sources' models agree on."""

from fdamed.methods.kd3a.method import KD3A as KD3A
