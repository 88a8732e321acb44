"""The plots of the report as SVG: one definition for the page and for the files in `figures/`."""
