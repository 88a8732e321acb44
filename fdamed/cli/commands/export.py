"""Export the adapted model of one run as ONNX and safetensors, with preprocessing and model card.

No image, no patient and no path of this machine goes into the folder.

Examples:
    fdamed export results/demo/runs/gp/edema/0 --out edema_model
    fdamed export results/demo/runs/gp/edema/0 --bundle --out edema_bundle
    fdamed export --config config/config.yaml --run gp --target edema --seed 0 --out gp_edema_0
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fdamed.cli.options import print_json, read_config
from fdamed.core.errors import FdamedError
from fdamed.export.bundle import ABOUT
from fdamed.export.onnx_file import LIMIT, can_write_onnx
from fdamed.export.writer import write
from fdamed.pipeline.finished_runs import Chosen, by_folder, of_study

log = logging.getLogger(__name__)
GROUP = "use the model", 1
OPTIONS = {
    "folder": {"nargs": "?", "metavar": "RUN_FOLDER", "help": "results/STUDY/runs/RUN/TARGET/SEED, or:"},
    "--config": "",
    "--run": {"required": False},
    "--target": {"required": False},
    "--seed": {"required": False},
    "--out": {"required": True, "type": "path", "metavar": "FOLDER", "help": "new or empty folder to write"},
    "--without-onnx": {"action": "store_true", "help": "only safetensors, for use with fdamed and torch"},
    "--bundle": {"action": "store_true", "help": "also write a MONAI bundle: configs/, models/, docs/"},
    "--json": "",
}


def run(arguments: argparse.Namespace) -> None:
    chosen = find(arguments)
    if not arguments.without_onnx and not can_write_onnx():
        fix = "pip install 'fdamed[export]', or write only safetensors with --without-onnx."
        raise FdamedError("onnx and onnxruntime are not installed", "export", fix)
    if arguments.out.exists() and (not arguments.out.is_dir() or any(arguments.out.iterdir())):
        raise FdamedError("the folder is not empty", str(arguments.out), "Name a new one; nothing is overwritten.")
    about = write(chosen, arguments.out, not arguments.without_onnx, arguments.bundle)
    if chosen.keeps:
        log.warning("this model stayed inside the client during the study; sharing the folder discloses it")
    for caution in about["cautions"]:
        log.warning(caution)
    if arguments.json:
        print_json(about)
        return
    print(f"{chosen.record.key}: {', '.join(about['files'])}, {ABOUT}, model_card.md in {arguments.out}")
    for form, difference in about["parity"]["max_difference"].items():
        print(f"largest difference of {form} from the run's model: {difference:.2g} (limit {LIMIT:g})")


def find(arguments: argparse.Namespace) -> Chosen:
    """The run that the command line names, if it is finished and has a model."""
    key = (arguments.run_name, arguments.target, arguments.seed)
    fix = "Give the run's folder, or --config with --run, --target and --seed."
    if arguments.folder:
        if key != (None, None, None):
            raise FdamedError("a run was named twice", "command line", fix)
        return by_folder(Path(arguments.folder))
    if None in key or not arguments.config:
        raise FdamedError("no run was named", "command line", fix)
    return of_study(read_config(arguments), *key)
