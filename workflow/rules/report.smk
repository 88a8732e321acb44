# Views of the files: MLflow and the HTML report. Both can be rebuilt without training again.


localrules:
    track,
    report_page,


rule track:
    input:
        run_files(),
        f"{ROOT}/report/index.html",
    output:
        f"{ROOT}/tracked.json",
    log:
        f"{ROOT}/logs/track.log",
    conda:
        ENVIRONMENT
    params:
        settings=settings("tracking", "privacy", source="package"),
    shell:
        "fdamed track 2> {log:q}"


rule report_page:
    input:
        run_files(),
        [file for files in analysis_files(study).values() for file in files],
        f"{ROOT}/cohort.json",
        f"{ROOT}/ingest.json",
        f"{ROOT}/leakage.json",
    output:
        report(
            f"{ROOT}/report/index.html",
            caption="../report/page.rst",
            category="Study",
            labels={"result": "page with the whole study"},
        ),
        report(
            f"{ROOT}/report/what_left_each_hospital.csv",
            caption="../report/ledger.rst",
            category="Privacy",
            labels={"result": "what left each hospital"},
        ),
        report(
            f"{ROOT}/report/tables/headline.csv",
            caption="../report/headline.rst",
            category="Study",
            labels={"result": "scores of every run, as a table"},
        ),
        f"{ROOT}/report/headline.json",
    log:
        f"{ROOT}/logs/report.log",
    conda:
        ENVIRONMENT
    params:
        settings=settings(
            "split",
            "privacy",
            "runs",
            "seeds",
            "published",
            "advise",
            "audit",
            source="package",
        ),
    shell:
        "fdamed report 2> {log:q}"
