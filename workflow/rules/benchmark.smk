# Public benchmark sets -> hospitals: one rule in the place of ingest, split, cache and leakage.


rule partition:
    output:
        orders=expand(
            f"{ROOT}/clients/{{client}}/order.parquet", client=study.split.clients
        ),
        images=expand(
            f"{ROOT}/clients/{{client}}/images.npy", client=study.split.clients
        ),
        summary=multiext(f"{ROOT}/", "ingest.json", "cohort.json", "leakage.json"),
    log:
        f"{ROOT}/logs/partition.log",
    benchmark:
        f"{ROOT}/clients/benchmarks/partition.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(4000),
        runtime=60,
    params:
        settings=settings("data", "split", "image", "model"),
    shell:
        "fdamed partition 2> {log:q}"
