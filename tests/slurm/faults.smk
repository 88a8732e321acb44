# Jobs that go wrong, and one that wants a GPU; run with the profile of the workflow.
rule all:
    input:
        "flaky.txt",
        "hungry.txt",
        "gpu.txt",


rule flaky:
    output:
        "flaky.txt",
    shell:
        "if [ ! -e tried ]; then touch tried; exit 1; fi; echo ok > {output}"


rule hungry:
    output:
        "hungry.txt",
    resources:
        mem_mb=lambda wildcards, attempt: 900 + 1500 * (attempt - 1),
    shell:
        "python -c 'import time; x = bytearray(900 << 20); time.sleep(8)' && echo ok > {output}"


rule gpu:
    output:
        "gpu.txt",
    resources:
        gpu=1,
    shell:
        "echo ${{CUDA_VISIBLE_DEVICES:-none}} > {output}"
