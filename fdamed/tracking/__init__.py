"""Finished runs -> MLflow, as often as one likes: what is already there unchanged is left alone.

Training never talks to MLflow. One importer reads run folders and writes each in a few calls, so compute nodes need no
network, nothing races, and a lost tracking database is made again from the files.
"""
