# fdamed: from raw radiographs to a report on which method adapts best to the target hospital.
#   snakemake --cores 2                                        the embedded demo, config/config.yaml
#   snakemake --cores 8 --configfile config/chexpert.yaml      your data
#   snakemake --cores 2 --configfile study.yaml --config transport=network      hospitals elsewhere
from snakemake.utils import min_version

min_version("9.27")


# A file given with --configfile stands alone: merged over the demo it would inherit the demo's hospitals.
if not config:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


if study.train.transport == "network":

    include: "workflow/rules/network.smk"

else:

    if study.data.layout == "benchmark":

        include: "workflow/rules/benchmark.smk"

    else:

        include: "workflow/rules/data.smk"
    include: "workflow/rules/federate.smk"
    include: "workflow/rules/classical.smk"
    include: "workflow/rules/advise.smk"
    include: "workflow/rules/analyses.smk"


include: "workflow/rules/report.smk"


localrules:
    all,
    data,


onstart:
    hold_study()
    keep_config()


rule all:
    default_target: True
    input:
        run_files(),
        f"{ROOT}/tracked.json",
        f"{ROOT}/report/index.html",


rule data:
    input:
        f"{ROOT}/leakage.json",
