"""Experiments: a TOML says what to run, stages run it once, a study puts the results together."""

from sirc.experiment import arrays
from sirc.experiment.data_check import check_data
from sirc.experiment.experiment import FILE, PAPER_SPECS, Experiment, Run
from sirc.experiment.provenance import check_outputs, load_head, network
from sirc.experiment.results import RunResults, load_runs, load_studies, load_study, shown_scores, title_of
from sirc.experiment.results_file import read_results
from sirc.experiment.stages import extract_run, fit_run, images_of, train_run
from sirc.experiment.study import PAGE, TARGETS, Study, run_study, sample_sets, save_results

__all__ = [
    "FILE",
    "PAGE",
    "PAPER_SPECS",
    "TARGETS",
    "Experiment",
    "Run",
    "RunResults",
    "Study",
    "arrays",
    "check_data",
    "check_outputs",
    "extract_run",
    "fit_run",
    "images_of",
    "load_head",
    "load_runs",
    "load_studies",
    "load_study",
    "network",
    "read_results",
    "run_study",
    "sample_sets",
    "save_results",
    "shown_scores",
    "title_of",
    "train_run",
]
