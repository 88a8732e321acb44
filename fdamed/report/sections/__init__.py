"""The sections of the report: NAME.py and NAME.html each; see `fdamed.report.section`."""
