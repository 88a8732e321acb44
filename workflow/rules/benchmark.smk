# Public benchmark sets -> hospitals: one rule in the place of ingest, split, cache and guard.


rule divide:
    output:
        orders=expand(
            f"{ROOT}/clients/{{client}}/order.parquet", client=study.split.clients
        ),
        images=expand(f"{ROOT}/clients/{{client}}/images.npy", client=study.split.clients),
        summary=multiext(f"{ROOT}/", "ingest.json", "cohort.json", "leakage.json"),
    log:
        f"{ROOT}/logs/divide.log",
    benchmark:
        f"{ROOT}/benchmarks/divide.tsv"
    conda:
        "../../envs/fdamed.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=60,
    params:
        settings=settings("data", "split", "image", "model"),
    shell:
        "fdamed divide 2> {log:q}"
