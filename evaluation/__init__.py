"""Evaluation of sentence encoders: texts in, scores out. Names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csekit.evaluation.compare import Difference as Difference
    from csekit.evaluation.compare import compare_runs as compare_runs
    from csekit.evaluation.encode_files import encode_file as encode_file
    from csekit.evaluation.encode_files import merge_shards as merge_shards
    from csekit.evaluation.encoding import TextEncoder as TextEncoder
    from csekit.evaluation.encoding import encode as encode
    from csekit.evaluation.geometry import alignment as alignment
    from csekit.evaluation.geometry import effective_rank as effective_rank
    from csekit.evaluation.geometry import label_free_criteria as label_free_criteria
    from csekit.evaluation.geometry import mean_cosine as mean_cosine
    from csekit.evaluation.geometry import uniformity as uniformity
    from csekit.evaluation.loading import load_encoder as load_encoder
    from csekit.evaluation.metric import STSSpearman as STSSpearman
    from csekit.evaluation.pairs import Pairs as Pairs
    from csekit.evaluation.pairs import read_pairs as read_pairs
    from csekit.evaluation.ray_encoding import encode_with_ray as encode_with_ray
    from csekit.evaluation.results import checksum as checksum
    from csekit.evaluation.results import environment as environment
    from csekit.evaluation.results import read_results as read_results
    from csekit.evaluation.results import write_results as write_results
    from csekit.evaluation.sts import STSScores as STSScores
    from csekit.evaluation.sts import evaluate_pairs as evaluate_pairs
    from csekit.evaluation.sts import evaluate_sts as evaluate_sts
    from csekit.evaluation.sts_data import load_sts as load_sts
    from csekit.evaluation.sts_data import load_sts_hub as load_sts_hub
    from csekit.evaluation.sts_data import load_stsb_dev as load_stsb_dev

_PUBLIC = {
    "compare": ("Difference", "compare_runs"),
    "encode_files": ("encode_file", "merge_shards"),
    "encoding": ("TextEncoder", "encode"),
    "geometry": ("alignment", "effective_rank", "label_free_criteria", "mean_cosine", "uniformity"),
    "loading": ("load_encoder",),
    "metric": ("STSSpearman",),
    "pairs": ("Pairs", "read_pairs"),
    "ray_encoding": ("encode_with_ray",),
    "results": ("checksum", "environment", "read_results", "write_results"),
    "sts": ("STSScores", "evaluate_pairs", "evaluate_sts"),
    "sts_data": ("load_sts", "load_sts_hub", "load_stsb_dev"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"csekit.evaluation.{_HOME[name]}"), name)
    raise AttributeError(f"module 'csekit.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
