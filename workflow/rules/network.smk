# Hospitals elsewhere: one job leads all runs and asks for what the report needs; each hospital has prepared its own data.


localrules:
    lead,  # hospitals connect to this machine


rule lead:
    input:
        pretrained,
    output:
        expand(
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/{{file}}",
            run=FEDERATED,
            target=study.split.targets,
            seed=study.seeds,
            file=RUN_FILES,
        ),
        expand(
            f"{ROOT}/clients/{{target}}/scores/{{run}}/{{target}}/{{seed}}.json",
            run=FEDERATED,
            target=study.split.targets,
            seed=study.seeds,
        ),
        [file for files in analysis_files(study).values() for file in files],
        multiext(f"{ROOT}/", "ingest.json", "cohort.json", "leakage.json"),
    log:
        f"{ROOT}/logs/lead.snakemake.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/lead.tsv"
    conda:
        ENVIRONMENT
    threads: study.train.threads
    resources:
        mem_mb=train_memory,
    params:
        settings=[settings_of(run) for run in FEDERATED],
        analyses=settings("seeds", "audit", source="package"),
    shell:
        'exec fdamed lead --study "$FDAMED_CONFIG" 2> {log:q}'
