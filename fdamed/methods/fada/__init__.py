"""FADA (Peng, Huang, Zhu, Saenko, ICLR 2020): federated adversarial domain adaptation; the target has no labels."""

from fdamed.methods.fada.method import Fada as Fada
