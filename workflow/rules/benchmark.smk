# Public benchmark sets -> hospitals: one rule in the place of ingest, split, cache and guard.


rule divide:
    output:
        orders=expand(
            f"{ROOT}/parties/{{party}}/order.parquet", party=study.cut.parties
        ),
        images=expand(f"{ROOT}/parties/{{party}}/images.npy", party=study.cut.parties),
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
        settings=settings("data", "cut", "image", "model"),
    shell:
        "fdamed divide 2> {log:q}"
