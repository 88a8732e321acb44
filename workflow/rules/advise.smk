# Before any long training: one round of each run, tried on held-out labels. Training never waits for it, nor it for training.


rule advise:
    input:
        cohort=f"{ROOT}/cohort.json",
        leakage=f"{ROOT}/leakage.json",
        pretrained=pretrained,
        theta=ancient(f"{ROOT}/init/{study.seeds[0]}/theta.safetensors"),
    output:
        advice=f"{ROOT}/advice/{{target}}.json",
        ledger=f"{ROOT}/advice/{{target}}.ledger.jsonl",
        map=report(
            f"{ROOT}/advice/{{target}}.svg",
            caption="../report/advice.rst",
            category="Advice",
            labels={"result": "the theory's map for {target}"},
        ),
    log:
        f"{ROOT}/logs/advise.{{target}}.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/advise.{{target}}.tsv"
    conda:
        ENVIRONMENT
    threads: study.train.threads
    resources:
        mem_mb=train_memory,
        gpu=GPU,
        runtime=60,
    params:
        settings=settings(
            "phantom",
            "data",
            "split",
            "image",
            "model",
            "train",
            "privacy",
            "runs",
            source="theory",
        ),
        seed=study.seeds[0],
    shell:
        "fdamed advise --target {wildcards.target} --seed {params.seed} "
        "--threads {threads} 2> {log:q}"
