# The checked configuration, and what the rules ask about it.
import atexit
import shlex
from contextlib import ExitStack

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

from fdamed.config.base import without_defaults
from fdamed.config.key_kinds import without_views
from fdamed.config.loader import catalog
from fdamed.config.loader import merged
from fdamed.config.loader import parse as checked
from fdamed.config.runs import candidates
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, private, write_json, write_text
from fdamed.core.gpus import takes_gpu
from fdamed.core.locks import locked
from fdamed.core.provenance import digest_code, digest_package
from fdamed.pipeline.batching import FILES as RUN_FILES
from fdamed.pipeline.fingerprint import training_code
from fdamed.pipeline.paths import LAST
from fdamed.project import environment
from fdamed.pipeline.selection import (
    analysis_files,
    batches,
    federated_runs,
    trained_by_clients,
)

try:
    # Snakemake has read them too, but takes a key that stands there twice, and a run without options for none.
    merged(*workflow.configfiles)
    raw = dict(config)
    if transport := raw.pop("transport", None):  # --config transport=network
        raw["train"] = {**raw.get("train", {}), "transport": transport}
    study = checked(raw, where=", ".join(map(str, workflow.configfiles)))
except FdamedError as error:
    raise WorkflowError(f"{error.what}\n  where: {error.where}\n  to do: {error.fix}")

for place in (
    study.results,
    getattr(study.data, "root", ""),
    study.model.weights or "",
):
    if "{" in place or "}" in place:
        raise WorkflowError(
            f"Snakemake takes the braces in this path for a wildcard: {place}\n"
            "  to do: rename the folder, or give the path of a symbolic link without braces"
        )

ROOT = f"{study.results}/{study.study}"
# Without defaults: a new key changes no digest, and the jobs read the same configuration from it.
SECTIONS = without_defaults(study)
# What data and training depend on: a key that decides views only (config/key_kinds.py) never trains again.
LASTING = without_views(SECTIONS)
# Named by its content: older ones are kept, for runs that were trained with them.
CONFIG = f"{ROOT}/clients/config.{digest(SECTIONS)}.json"
# Of `--sdm conda`; JSON is YAML, too.
ENVIRONMENT = str(Path(f"{ROOT}/clients/fdamed.yaml").absolute())
RUNS = study.expanded_runs()
FEDERATED = federated_runs(study)
CLASSICAL = [name for name in RUNS if name not in FEDERATED]
# What jobs train: candidates in the place of a tuned run.
TRAINED = study.trained_runs()
# Analyses that have one file a target.
AUDITS = [s for s in ("audit", "attributes") if s in analysis_files(study)]
TUNED = [name for name, run in RUNS.items() if run.tune]
# Of every job that trains or predicts; a process that gets one leases it (fdamed/core/gpus.py).
GPU = int(takes_gpu(study.train.device))
COMMANDS = "fdamed.cli.commands"
DATA = [
    f"{COMMANDS}.{c}"
    for c in ("phantom", "ingest", "split", "cache", "leakage", "partition")
]
MODEL = [f"{COMMANDS}.init"]
# Snakemake does not see a changed package: each rule has the digest of the code that makes its files.
SOURCE = {
    "data": digest_code(*DATA),
    "model": digest_code(*MODEL),
    "features": digest_code(*DATA, *MODEL, f"{COMMANDS}.features"),
    "theory": digest_code(*DATA, *MODEL, f"{COMMANDS}.advise"),
    "scores": digest_code(f"{COMMANDS}.evaluate"),
    "choice": digest_code(f"{COMMANDS}.choose"),
    "package": digest_package(),
}


wildcard_constraints:
    client="|".join(study.split.clients),
    target="|".join(study.split.targets),
    run="|".join(map(re.escape, RUNS | TRAINED)),
    seed=r"-?\d+",


def keep_config():
    """Write the resolved configuration, and that the study was last run with it: views show what it allows.

    Only at the start of a real run that holds the study; what a dry run was given decides nothing.
    """
    private(f"{ROOT}/clients")
    write_json(CONFIG, SECTIONS)
    write_json(ENVIRONMENT, environment())
    write_text(f"{ROOT}/clients/{LAST}", f"{Path(CONFIG).name}\n")


HELD = ExitStack()
atexit.register(HELD.close)


def hold_study():
    """Let this Snakemake alone write to the study.

    Snakemake looks whether there is a lock and then makes one: of two that start in the same moment both go on, and
    the job that fails in one of them takes the other's files with it. This lock is taken in one step.
    """
    try:
        HELD.enter_context(locked(ROOT))
    except FdamedError as error:
        raise WorkflowError(
            f"{error.what}\n  where: {error.where}\n  to do: {error.fix}"
        )


def settings(*sections, source="data"):
    """A digest that changes when, and only when, these sections of the configuration or this part of the code do.

    A job names its own sections and those of all jobs before it: when one of them fails, Snakemake deletes its output,
    and would take what was made from the old one for up to date. Views depend on the whole package and on all keys.
    """
    known = SECTIONS if source == "package" else LASTING
    return digest([SOURCE[source], [known.get(s) for s in sections]])


def settings_of(run):
    sections = ("phantom", "data", "split", "image", "model", "train", "privacy")
    spec = (TRAINED | RUNS)[run]
    code = [SOURCE["model"], training_code(spec, catalog())]
    return digest([settings(*sections), code, without_defaults(spec)])


def one_of(names):
    """A pattern of these names alone; of none, one that nothing matches."""
    return "|".join(map(re.escape, names)) or "(?!)"


def backbone_of(wildcards):
    """Whose features a classical run takes: init, or another run."""
    return RUNS[wildcards.run].options.get("features", "init")


def initial_weights(wildcards):
    """Of one seed, whatever their age: a new seed writes those of all again, with the same bits.

    What could change the bits (the model's settings and code, pretrained weights) is named by each rule that reads them.
    """
    return ancient(f"{ROOT}/init/{wildcards.seed}/theta.safetensors")


def backbone_weights(wildcards):
    """The weights that make the features; of a trained backbone only when its run is done."""
    if wildcards.backbone == "init":
        return [initial_weights(wildcards)]
    folder = f"{ROOT}/runs/{wildcards.backbone}/{wildcards.target}/{wildcards.seed}"
    return [f"{folder}/theta.safetensors", f"{folder}/done"]


def released_features(wildcards):
    """The features of every hospital that a classical run pools."""
    return expand(
        f"{ROOT}/clients/{{client}}/features/{{backbone}}/{{target}}/{{seed}}.safetensors",
        client=study.split.clients,
        backbone=backbone_of(wildcards),
        target=wildcards.target,
        seed=wildcards.seed,
    )


def run_settings(wildcards):
    return settings_of(wildcards.run)


def candidates_of(wildcards):
    """The candidates of a tuned run, when they are trained."""
    return expand(
        f"{ROOT}/runs/{{run}}/{wildcards.target}/{wildcards.seed}/done",
        run=candidates(wildcards.run, RUNS[wildcards.run]),
    )


def batch_keys(batch):
    """The folders of a batch's runs, for one target and seed."""

    def keys(wildcards):
        return [f"{run}/{wildcards.target}/{wildcards.seed}" for run in batch]

    return keys


def raw_data(wildcards):
    """The phantom's marker, or a real tree's tables; its images are too many to watch (docs/how_to/data/index.md)."""
    if study.phantom:
        return [f"{study.data.root}/.phantom.json"]
    endings = (".csv", ".csv.gz", ".tsv", ".json", ".xlsx")
    root = Path(study.data.root)
    if study.data.layout == "table":  # other tables beside it are none of the study's
        return [str(table)] if (table := root / study.data.table).is_file() else []
    places = [root, *root.glob("CheXpert-v1.0*")]
    if study.data.layout == "midrc":
        places += [p for p in root.glob("*") if p.is_dir()]
    tables = [f for p in places if p.is_dir() for f in p.iterdir()]
    if getattr(study.data, "mimic_iv", None):
        base = Path(study.data.mimic_iv)
        tables += [*base.glob("**/patients.csv*"), *base.glob("**/admissions.csv*")]
    named = getattr(study.data, "demographics", None)
    tables += [Path(named)] if named and Path(named).is_file() else []
    return sorted({str(f) for f in tables if f.name.endswith(endings)})


def pretrained(wildcards):
    return [study.model.weights] if study.model.weights else []


def growing(megabytes):
    """What a job asks for at first, and half as much again after each failure."""

    def memory(wildcards, attempt):
        return int(megabytes * (1 + 0.5 * (attempt - 1)))

    return memory


train_memory = growing(3000)  # models, cache and libraries


def scores_of(runs):
    """The scores of these runs with all seeds, for one target."""
    return expand(
        f"{ROOT}/clients/{{{{target}}}}/scores/{{run}}/{{{{target}}}}/{{seed}}.json",
        run=runs,
        seed=study.seeds,
    )


def analyses(wildcards):
    """The commands that score and audit all runs of a target, for one process."""
    each = {
        "evaluate": f"--client {wildcards.target} --threads 1",
        "audit": "",
        "attributes": f"--threads {study.train.threads}",
    }
    wanted = [*(["evaluate"] if FEDERATED else []), *AUDITS]
    return " + ".join(f"{c} --target {wildcards.target} {each[c]}" for c in wanted)


def run_files():
    """The files of every run of the study."""
    return expand(
        [
            f"{ROOT}/runs/{{run}}/{{target}}/{{seed}}/done",
            f"{ROOT}/clients/{{target}}/scores/{{run}}/{{target}}/{{seed}}.json",
        ],
        run=RUNS if study.train.transport != "network" else FEDERATED,
        target=study.split.targets,
        seed=study.seeds,
    )


# The jobs learn it by the environment, not by params: its name changes with every key, and a job must run again only
# for its own.
shell.prefix(f"export FDAMED_CONFIG={shlex.quote(CONFIG)}; ")
# Conda's environments are made before a run starts.
if DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method:
    private(f"{ROOT}/clients")
    write_json(ENVIRONMENT, environment())
