# Classical methods beside the federated ones: features stay in each hospital until a run pools what it releases.


rule features:
    input:
        f"{ROOT}/clients/{{client}}/order.parquet",
        backbone_weights,
        pretrained,
    output:
        f"{ROOT}/clients/{{client}}/features/{{backbone}}/{{target}}/{{seed}}.safetensors",
    log:
        f"{ROOT}/clients/{{client}}/logs/features.{{backbone}}.{{target}}.{{seed}}.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/features.{{client}}.{{backbone}}.{{target}}.{{seed}}.tsv"
    wildcard_constraints:
        backbone=one_of(["init", *FEDERATED]),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        gpu=GPU,
        runtime=60,
    params:
        settings=settings(
            "phantom", "data", "split", "image", "model", source="features"
        ),
    shell:
        "fdamed features --client {wildcards.client} --backbone {wildcards.backbone:q} "
        "--target {wildcards.target} --seed {wildcards.seed} --threads {threads} 2> {log:q}"


rule fit_classical:
    input:
        released_features,
        leakage=f"{ROOT}/leakage.json",
        cohort=f"{ROOT}/cohort.json",
    output:
        multiext(
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/",
            "run.json",
            "metrics.jsonl",
            "timing.jsonl",
            "ledger.jsonl",
            "absences.jsonl",
            "done",
        ),
        scores=f"{ROOT}/clients/{{target}}/scores/{{run}}/{{target}}/{{seed}}.json",
    log:
        f"{ROOT}/logs/fit_classical.{{run}}.{{target}}.{{seed}}.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/fit_classical.{{run}}.{{target}}.{{seed}}.tsv"
    wildcard_constraints:
        run=one_of(CLASSICAL),
    conda:
        ENVIRONMENT
    threads: study.train.threads
    resources:
        mem_mb=train_memory,
        runtime=240,
    params:
        settings=run_settings,
    shell:
        "fdamed fit-classical --run {wildcards.run:q} --target {wildcards.target} "
        "--seed {wildcards.seed} --threads {threads} 2> {log:q}"
