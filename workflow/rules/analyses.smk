# Analyses of the trained models at the hospitals: paired comparisons, attribute and membership inference.


if study.batch_runs == 1:

    rule audit:
        input:
            lambda wildcards: [f for f in run_files() if f"/{wildcards.target}/" in f],
        output:
            f"{ROOT}/audit/{{target}}.json",
        log:
            f"{ROOT}/logs/audit.{{target}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/audit.{{target}}.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=2000,
            runtime=30,
        params:
            settings=settings("privacy", "runs", "seeds", source="package"),
        shell:
            "fdamed audit --target {wildcards.target} 2> {log:q}"

    rule attributes:
        input:
            lambda wildcards: [
                f"{ROOT}/runs/{run}/{wildcards.target}/{seed}/done"
                for run in FEDERATED
                for seed in study.seeds
            ],
            order=f"{ROOT}/clients/{{target}}/order.parquet",
            theta=expand(f"{ROOT}/init/{{seed}}/theta.safetensors", seed=study.seeds),
        output:
            f"{ROOT}/attributes/{{target}}.json",
        log:
            f"{ROOT}/logs/attributes.{{target}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/attributes.{{target}}.tsv"
        conda:
            ENVIRONMENT
        threads: study.train.threads
        resources:
            mem_mb=growing(3000),
            gpu=GPU,
            runtime=240,
        params:
            settings=settings("privacy", "runs", "seeds", "audit", source="package"),
        shell:
            "fdamed attributes --target {wildcards.target} --threads {threads} 2> {log:q}"

    rule membership:
        input:
            expand(
                f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/done",
                run=FEDERATED,
                target=study.split.targets,
                seed=study.seeds,
            ),
            order=f"{ROOT}/clients/{{client}}/order.parquet",
            theta=expand(f"{ROOT}/init/{{seed}}/theta.safetensors", seed=study.seeds),
        output:
            f"{ROOT}/membership/{{client}}.json",
        log:
            f"{ROOT}/logs/membership.{{client}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/membership.{{client}}.tsv"
        conda:
            ENVIRONMENT
        threads: study.train.threads
        resources:
            mem_mb=growing(3000),
            gpu=GPU,
            runtime=240,
        params:
            settings=settings("privacy", "runs", "seeds", "audit", source="package"),
        shell:
            "fdamed membership --client {wildcards.client:q} --threads {threads} 2> {log:q}"

else:  # a small study: one process scores and audits all runs of a target, and one does all membership inference

    rule analyze:
        input:
            expand(
                f"{ROOT}/runs/{{run}}/{{{{target}}}}/{{seed}}/done",
                run=RUNS,
                seed=study.seeds,
            ),
            scores_of(CLASSICAL),
            order=f"{ROOT}/clients/{{target}}/order.parquet",
            theta=expand(f"{ROOT}/init/{{seed}}/theta.safetensors", seed=study.seeds),
        output:
            scores_of(FEDERATED),
            [f"{ROOT}/{step}/{{target}}.json" for step in AUDITS],
        log:
            f"{ROOT}/logs/analyze.{{target}}.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/analyze.{{target}}.tsv"
        conda:
            ENVIRONMENT
        threads: study.train.threads
        resources:
            mem_mb=growing(3000),
            gpu=GPU,
            runtime=240,
        params:
            settings=settings("privacy", "runs", "seeds", "audit", source="package"),
            commands=analyses,
        shell:
            "fdamed {params.commands} 2> {log:q}"

    rule membership:
        input:
            expand(
                f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/done",
                run=FEDERATED,
                target=study.split.targets,
                seed=study.seeds,
            ),
            order=expand(
                f"{ROOT}/clients/{{client}}/order.parquet", client=study.split.clients
            ),
            theta=expand(f"{ROOT}/init/{{seed}}/theta.safetensors", seed=study.seeds),
        output:
            expand(f"{ROOT}/membership/{{client}}.json", client=study.split.clients),
        log:
            f"{ROOT}/logs/membership.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/membership.tsv"
        conda:
            ENVIRONMENT
        threads: study.train.threads
        resources:
            mem_mb=growing(3000),
            gpu=GPU,
            runtime=240,
        params:
            settings=settings("privacy", "runs", "seeds", "audit", source="package"),
        shell:
            "fdamed membership --threads {threads} 2> {log:q}"
