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


def judged(study: Study) -> tuple[list[Claim], dict[str, Claim]]:
    """Every claim network by network, and those that make sense of all networks as one, by title."""
    claims = list(claims_of(study))
    if len(study.kinds) == 1:
        return claims, {}
    titles = {claim.title for claim in claims if not claim.by_network}
    return claims, {
        claim.title: claim for claim in claims_of(study.together()) if claim.title in titles and claim.checks
    }
