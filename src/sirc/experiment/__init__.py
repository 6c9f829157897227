"""Experiments: a TOML says what to run, stages run it once, a study puts the results together."""

from sirc.experiment import arrays
from sirc.experiment.choice import (
    calibration_set,
    keep_choice,
    latest_choice,
    outputs_to_choose,
    rows_to_calibrate,
)
from sirc.experiment.config import DEFAULT_SPECS, PAPER_SPECS
from sirc.experiment.experiment import FILE, Experiment, Run
from sirc.experiment.images import check_data, images_for_samples, images_of
from sirc.experiment.network import load_head, network
from sirc.experiment.results import (
    RunResults,
    load_experiment,
    load_experiments,
    load_runs,
    read_results,
    reported_scores,
    title_of,
)
from sirc.experiment.stages import check_outputs, extract_run, fit_run, train_run
from sirc.experiment.study import PAGE, TARGETS, Study, run_study, save_results, save_table
from sirc.experiment.trust import import_named, require_trust

__all__ = [
    "DEFAULT_SPECS",
    "FILE",
    "PAGE",
    "PAPER_SPECS",
    "TARGETS",
    "Experiment",
    "Run",
    "RunResults",
    "Study",
    "arrays",
    "calibration_set",
    "check_data",
    "check_outputs",
    "extract_run",
    "fit_run",
    "images_for_samples",
    "images_of",
    "import_named",
    "keep_choice",
    "latest_choice",
    "load_experiment",
    "load_experiments",
    "load_head",
    "load_runs",
    "network",
    "outputs_to_choose",
    "read_results",
    "reported_scores",
    "require_trust",
    "rows_to_calibrate",
    "run_study",
    "save_results",
    "save_table",
    "title_of",
    "train_run",
]
