# Raw tree -> index -> one manifest a hospital -> one memory-mapped cache a hospital.

if study.phantom:

    rule phantom:
        output:
            f"{study.data.root}/.phantom.json",
        log:
            f"{ROOT}/logs/phantom.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/phantom.tsv"
        conda:
            ENVIRONMENT
        threads: 2
        resources:
            mem_mb=growing(2000),
            runtime=30,
        params:
            settings=settings("phantom", "data"),
        shell:
            "fdamed phantom 2> {log:q}"


if study.batch_runs == 1:

    rule ingest:
        input:
            raw_data,
        output:
            index=f"{ROOT}/clients/index.parquet",
            rejects=f"{ROOT}/clients/rejects.csv",
            summary=f"{ROOT}/ingest.json",
        log:
            f"{ROOT}/clients/logs/ingest.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/ingest.tsv"
        conda:
            ENVIRONMENT
        threads: 2
        resources:
            mem_mb=growing(2000),
            runtime=120,
        params:
            settings=settings("phantom", "data"),
        shell:
            "fdamed ingest 2> {log:q}"

    rule split:
        input:
            f"{ROOT}/clients/index.parquet",
        output:
            manifests=expand(
                f"{ROOT}/clients/{{client}}/manifest.parquet",
                client=study.split.clients,
            ),
            cohort=f"{ROOT}/cohort.json",
        log:
            f"{ROOT}/logs/split.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/split.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(1500),
            runtime=20,
        params:
            settings=settings("phantom", "data", "split"),
        shell:
            "fdamed split 2> {log:q}"

    rule cache:
        input:
            f"{ROOT}/clients/{{client}}/manifest.parquet",
        output:
            images=f"{ROOT}/clients/{{client}}/images.npy",
            order=f"{ROOT}/clients/{{client}}/order.parquet",
        log:
            f"{ROOT}/clients/{{client}}/logs/cache.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/cache.{{client}}.tsv"
        conda:
            ENVIRONMENT
        threads: 1 if study.phantom else 8
        resources:
            mem_mb=growing(3000),
            runtime=240,
        params:
            settings=settings("phantom", "data", "split", "image"),
        shell:
            "fdamed cache --client {wildcards.client} --workers {threads} 2> {log:q}"

    rule leakage:
        input:
            expand(
                f"{ROOT}/clients/{{client}}/order.parquet", client=study.split.clients
            ),
        output:
            f"{ROOT}/leakage.json",
        log:
            f"{ROOT}/logs/leakage.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/leakage.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(3000),
            runtime=60,
        params:
            settings=settings("phantom", "data", "split", "image"),
        shell:
            "fdamed leakage 2> {log:q}"

else:  # a small study: starting a process takes longer than its work

    rule prepare:
        input:
            raw_data,
        output:
            index=f"{ROOT}/clients/index.parquet",
            rejects=f"{ROOT}/clients/rejects.csv",
            clients=expand(
                f"{ROOT}/clients/{{client}}/{{file}}",
                client=study.split.clients,
                file=["manifest.parquet", "images.npy", "order.parquet"],
            ),
            summary=multiext(f"{ROOT}/", "ingest.json", "cohort.json", "leakage.json"),
        log:
            f"{ROOT}/clients/logs/prepare.log",
        benchmark:
            f"{ROOT}/clients/benchmarks/prepare.tsv"
        conda:
            ENVIRONMENT
        threads: 2
        resources:
            mem_mb=growing(3000),
            runtime=240,
        params:
            settings=settings("phantom", "data", "split", "image"),
        shell:
            "fdamed ingest + split + cache --workers {threads} + leakage 2> {log:q}"
