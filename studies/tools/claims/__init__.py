"""The paper's claims, each with the comparisons that bear it out or speak against it."""

from collections.abc import Iterator

from studies.tools.claims.detection import detection_claims
from studies.tools.claims.mixture import mixture_claims
from studies.tools.claims.separation import separation_claims
from studies.tools.claims.single_scores import score_claims
from studies.tools.claims.verdicts import Claim
from studies.tools.study import Study


def claims_of(study: Study) -> Iterator[Claim]:
    """Judge every claim of the paper, in the order of its sections."""
    for some in (separation_claims, score_claims, mixture_claims, detection_claims):
        yield from some(study)
