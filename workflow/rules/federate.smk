# Starting weights -> one training job for each run, target and seed -> scores at the target.


rule init:
    input:
        pretrained,
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
        settings=settings("model"),
    shell:
        "fdamed init --seed {wildcards.seed} 2> {log:q}"


rule federate:
    input:
        guard=f"{ROOT}/leakage.json",  # made when every cache is there
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
    wildcard_constraints:
        run=one_of(FEDERATED),
    conda:
        "../../envs/fdamed.yaml"
    threads: study.train.threads
    resources:
        mem_mb=train_memory,
        gpu=1 if study.train.device == "cuda" else 0,
        runtime=1440,
    params:
        settings=run_settings,
    shell:
        "fdamed federate --run {wildcards.run:q} --target {wildcards.target} "
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
    wildcard_constraints:
        run=one_of(FEDERATED),
    conda:
        "../../envs/fdamed.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        gpu=1 if study.train.device == "cuda" else 0,
        runtime=60,
    params:
        seeds=list(study.seeds),
    shell:
        "fdamed evaluate --run {wildcards.run:q} --target {wildcards.target} "
        "--party {wildcards.target} --seeds {params.seeds} --threads {threads} 2> {log:q}"
