"""Imports finished runs into MLflow; what is already there unchanged is left alone.

Training never talks to MLflow. One importer reads run folders, so compute nodes need no network, nothing races, and a
lost tracking database can be rebuilt from the files.
"""
