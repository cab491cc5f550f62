"""Spearman as an ``evaluate`` metric that needs no network (``evaluate.load`` downloads even core metrics)."""

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np
from scipy.stats import spearmanr

from csekit.evaluation.pairs import check_scores


class STSSpearman(evaluate.Metric):
    """Compute Spearman ×100: ``STSSpearman().compute(predictions=similarities, references=gold)["spearman"]``."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Spearman rank correlation, times 100, of similarities and gold scores; ties at average rank.",
            citation="",
            inputs_description="predictions: similarities; references: gold scores; two lists of N floats.",
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
            ),
        )

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
        check_scores(np.asarray(references), "references")
        return {"spearman": 100 * float(spearmanr(predictions, references).statistic)}
