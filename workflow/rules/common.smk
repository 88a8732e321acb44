# The checked configuration, and what the rules ask about it.
from snakemake.exceptions import WorkflowError

from fdamed import __version__
from fdamed.config import parse as checked
from fdamed.errors import FdamedError
from fdamed.files import digest, read_json, write_json

try:
    study = checked(dict(config), where=", ".join(map(str, workflow.configfiles)))
except FdamedError as error:
    raise WorkflowError(f"{error.what}\n  where: {error.where}\n  to do: {error.fix}")

ROOT = f"{study.results}/{study.cohort}"
CONFIG = f"{ROOT}/parties/config.json"
SECTIONS = study.model_dump(mode="json")
RUNS = study.expanded_runs()


wildcard_constraints:
    party="|".join(study.cut.parties),
    target="|".join(study.cut.targets),
    run="|".join(map(re.escape, RUNS)),
    seed=r"-?\d+",


def keep_config():
    """Write the resolved configuration for the jobs to read, only when it changed."""
    path = Path(CONFIG)
    if not path.exists() or read_json(path) != SECTIONS:
        write_json(path, SECTIONS)


def settings(*sections):
    """A digest that changes when, and only when, these sections of the configuration do."""
    return digest([__version__, [SECTIONS[s] for s in sections]])


def run_settings(wildcards):
    return digest(
        [
            settings("model", "train", "privacy"),
            RUNS[wildcards.run].model_dump(mode="json"),
        ]
    )


def raw_data(wildcards):
    """The phantom's marker where the data is a phantom; a real tree is too large to watch file by file."""
    return [f"{study.data.root}/.phantom.json"] if study.phantom else []


def train_memory(wildcards, attempt):
    """Megabytes: models, cache and libraries, and half as much again after each failure."""
    return int(3000 * (1 + 0.5 * (attempt - 1)))


def run_files():
    """The files of every run of the study."""
    return expand(
        [
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/done",
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/scores/{{target}}.json",
        ],
        run=RUNS,
        target=study.cut.targets,
        seed=study.seeds,
    )


keep_config()
