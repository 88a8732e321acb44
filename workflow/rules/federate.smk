# Starting weights -> one training job for each run, target and seed -> scores at the target.


rule init:
    output:
        theta=f"{ROOT}/init/{{seed}}/theta.safetensors",
        layout=f"{ROOT}/init/{{seed}}/layout.json",
    log:
        f"{ROOT}/logs/init.{{seed}}.log",
    benchmark:
        f"{ROOT}/benchmarks/init.{{seed}}.tsv"
    conda:
        "../../envs/fdamed.yaml"
    resources:
        mem_mb=1500,
        runtime=10,
    params:
        config=CONFIG,
        settings=settings("model"),
    shell:
        "fdamed init --config {params.config:q} --seed {wildcards.seed} 2> {log:q}"


rule federate:
    input:
        caches=expand(
            f"{ROOT}/parties/{{party}}/order.parquet", party=study.cut.parties
        ),
        guard=f"{ROOT}/leakage.json",
        theta=f"{ROOT}/init/{{seed}}/theta.safetensors",
    output:
        multiext(
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/",
            "run.json",
            "metrics.jsonl",
            "timing.jsonl",
            "ledger.jsonl",
            "layers.jsonl",
            "absences.jsonl",
            "theta.safetensors",
            "done",
        ),
    log:
        f"{ROOT}/logs/federate.{{run}}.{{target}}.{{seed}}.log",
    benchmark:
        f"{ROOT}/benchmarks/federate.{{run}}.{{target}}.{{seed}}.tsv"
    conda:
        "../../envs/fdamed.yaml"
    threads: 1
    resources:
        mem_mb=train_memory,
        runtime=1440,
    params:
        config=CONFIG,
        settings=run_settings,
    shell:
        "fdamed federate --config {params.config:q} --run {wildcards.run:q} --target {wildcards.target} "
        "--seed {wildcards.seed} --threads {threads} 2> {log:q}"


rule evaluate:
    input:
        expand(
            f"{ROOT}/runs/{{{{run}}}}/{{{{target}}}}/{{seed}}/done", seed=study.seeds
        ),
    output:
        expand(
            f"{ROOT}/runs/{{{{run}}}}/{{{{target}}}}/{{seed}}/scores/{{{{target}}}}.json",
            seed=study.seeds,
        ),
    log:
        f"{ROOT}/logs/evaluate.{{run}}.{{target}}.log",
    benchmark:
        f"{ROOT}/benchmarks/evaluate.{{run}}.{{target}}.tsv"
    conda:
        "../../envs/fdamed.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        config=CONFIG,
        seeds=list(study.seeds),
    shell:
        "fdamed evaluate --config {params.config:q} --run {wildcards.run:q} --target {wildcards.target} "
        "--party {wildcards.target} --seeds {params.seeds} --threads {threads} 2> {log:q}"
