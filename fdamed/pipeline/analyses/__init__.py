"""Analyses of finished models on one client's own images; what they return may leave the client."""
