# Starting weights -> one training job for each run (or candidate of a tuned run), target and seed, or for a batch of them
# -> the choice of candidates -> scores at the target.


rule init:
    input:
        pretrained,
    output:
        expand(f"{ROOT}/init/{{seed}}/theta.safetensors", seed=study.seeds),
    log:
        f"{ROOT}/logs/init.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/init.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1500),
        runtime=10,
    params:
        settings=settings("model", source="model"),
    shell:
        "fdamed init 2> {log:q}"


if study.batch_runs == 1:

    rule federate:
        input:
            leakage=f"{ROOT}/leakage.json",  # made when every cache is there
            pretrained=pretrained,
            theta=initial_weights,
        output:
            multiext(f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/", *RUN_FILES),
        log:
            f"{ROOT}/logs/federate.{{run}}.{{target}}.{{seed}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/federate.{{run}}.{{target}}.{{seed}}.tsv"
        wildcard_constraints:
            run=one_of(trained_by_clients(study)),
        conda:
            ENVIRONMENT
        threads: study.train.threads
        resources:
            mem_mb=train_memory,
            gpu=GPU,
            runtime=1440,
        params:
            settings=run_settings,
        shell:
            # exec: SLURM's SIGTERM goes to all processes, and a shell that died of it would be taken for the job's end.
            "exec fdamed federate --run {wildcards.run:q} --target {wildcards.target} "
            "--seed {wildcards.seed} --threads {threads} 2> {log:q}"

else:

    for number, batch in enumerate(batches(study)):

        rule:
            name:
                f"federate_{number}"
            input:
                leakage=f"{ROOT}/leakage.json",  # made when every cache is there
                pretrained=pretrained,
                theta=initial_weights,
            output:
                expand(
                    f"{ROOT}/runs/{{run}}/{{{{target}}}}/{{{{seed}}}}/{{file}}",
                    run=batch,
                    file=RUN_FILES,
                ),
            log:
                f"{ROOT}/logs/federate.batch_{number}.{{target}}.{{seed}}.log",
            benchmark:
                f"{ROOT}/clients/benchmarks/federate.batch_{number}.{{target}}.{{seed}}.tsv"
            conda:
                ENVIRONMENT
            threads: study.train.threads
            resources:
                mem_mb=train_memory,
                gpu=GPU,
                runtime=1440,
            params:
                settings=[settings_of(run) for run in batch],
                runs=batch_keys(batch),
            shell:
                "exec fdamed federate --runs {params.runs:q} --threads {threads} 2> {log:q}"


if TUNED:

    rule choose:
        input:
            candidates_of,
        output:
            multiext(f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/", *RUN_FILES),
        log:
            f"{ROOT}/logs/choose.{{run}}.{{target}}.{{seed}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/choose.{{run}}.{{target}}.{{seed}}.tsv"
        wildcard_constraints:
            run=one_of(TUNED),
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(2000),
            gpu=GPU,
            runtime=60,
        params:
            settings=run_settings,
            source=SOURCE["choice"],
        shell:
            "fdamed choose --run {wildcards.run:q} --target {wildcards.target} "
            "--seed {wildcards.seed} --threads {threads} 2> {log:q}"


if FEDERATED and study.batch_runs == 1:  # in a small study `analyze` does it

    rule evaluate:
        input:
            expand(
                f"{ROOT}/runs/{{run}}/{{{{target}}}}/{{seed}}/done",
                run=FEDERATED,
                seed=study.seeds,
            ),
        output:
            scores_of(FEDERATED),
        log:
            f"{ROOT}/logs/evaluate.{{target}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/evaluate.{{target}}.tsv"
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(2000),
            gpu=GPU,
            runtime=60 + 5 * len(FEDERATED) * len(study.seeds),
        params:
            source=SOURCE["scores"],
        shell:
            "fdamed evaluate --target {wildcards.target} --client {wildcards.target} "
            "--threads {threads} 2> {log:q}"
