"""Vectors to scores: STS, transfer, retrieval, geometry, comparisons, reports. Names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csekit.evaluation.baselines import StaticTokens as StaticTokens
    from csekit.evaluation.baselines import TfidfEncoder as TfidfEncoder
    from csekit.evaluation.baselines import Whitening as Whitening
    from csekit.evaluation.baselines import static_encoder as static_encoder
    from csekit.evaluation.clustering import ClusteringOptions as ClusteringOptions
    from csekit.evaluation.clustering import ClusteringScores as ClusteringScores
    from csekit.evaluation.clustering import clustering_suite as clustering_suite
    from csekit.evaluation.compare import Difference as Difference
    from csekit.evaluation.compare import compare_runs as compare_runs
    from csekit.evaluation.geometry import alignment as alignment
    from csekit.evaluation.geometry import effective_rank as effective_rank
    from csekit.evaluation.geometry import label_free_criteria as label_free_criteria
    from csekit.evaluation.geometry import mean_cosine as mean_cosine
    from csekit.evaluation.geometry import uniformity as uniformity
    from csekit.evaluation.geometry_scores import GeometryOptions as GeometryOptions
    from csekit.evaluation.geometry_scores import GeometryScores as GeometryScores
    from csekit.evaluation.geometry_scores import geometry_suite as geometry_suite
    from csekit.evaluation.labelling import draw_pairs as draw_pairs
    from csekit.evaluation.metric import STSSpearman as STSSpearman
    from csekit.evaluation.mteb_adapter import MTEBEncoder as MTEBEncoder
    from csekit.evaluation.mteb_adapter import banking77 as banking77
    from csekit.evaluation.mteb_adapter import mteb_banking77_task as mteb_banking77_task
    from csekit.evaluation.mteb_adapter import mteb_retrieval_task as mteb_retrieval_task
    from csekit.evaluation.mteb_adapter import mteb_sts_tasks as mteb_sts_tasks
    from csekit.evaluation.neighbors import Neighbor as Neighbor
    from csekit.evaluation.neighbors import QueryNeighbors as QueryNeighbors
    from csekit.evaluation.neighbors import nearest_neighbors as nearest_neighbors
    from csekit.evaluation.pairs import Pairs as Pairs
    from csekit.evaluation.pairs import read_pairs as read_pairs
    from csekit.evaluation.rank_vectors import RankEncoder as RankEncoder
    from csekit.evaluation.report.page import SearchData as SearchData
    from csekit.evaluation.report.page import build_report as build_report
    from csekit.evaluation.report.page import write_report as write_report
    from csekit.evaluation.report.papers import PaperRow as PaperRow
    from csekit.evaluation.report.papers import paper_table as paper_table
    from csekit.evaluation.report.runs import ReportRun as ReportRun
    from csekit.evaluation.report.runs import read_run as read_run
    from csekit.evaluation.results import read_results as read_results
    from csekit.evaluation.results import write_results as write_results
    from csekit.evaluation.retrieval import RetrievalScores as RetrievalScores
    from csekit.evaluation.retrieval import evaluate_retrieval as evaluate_retrieval
    from csekit.evaluation.retrieval import load_retrieval as load_retrieval
    from csekit.evaluation.retrieval import retrieval_suite as retrieval_suite
    from csekit.evaluation.retrieval import stsb_retrieval as stsb_retrieval
    from csekit.evaluation.retrieval_data import Collection as Collection
    from csekit.evaluation.retrieval_data import CollectionGroup as CollectionGroup
    from csekit.evaluation.retrieval_data import load_beir as load_beir
    from csekit.evaluation.score_file import ScoreFile as ScoreFile
    from csekit.evaluation.search import search_blocks as search_blocks
    from csekit.evaluation.sentences import draw_sentences as draw_sentences
    from csekit.evaluation.sentences import read_sentences as read_sentences
    from csekit.evaluation.stored_search import search_embeddings as search_embeddings
    from csekit.evaluation.sts import STSScores as STSScores
    from csekit.evaluation.sts import evaluate_pairs as evaluate_pairs
    from csekit.evaluation.sts import evaluate_sts as evaluate_sts
    from csekit.evaluation.sts_data import load_sts as load_sts
    from csekit.evaluation.sts_data import load_sts_hub as load_sts_hub
    from csekit.evaluation.sts_data import load_stsb_dev as load_stsb_dev
    from csekit.evaluation.transfer import TransferScores as TransferScores
    from csekit.evaluation.transfer import evaluate_transfer as evaluate_transfer
    from csekit.evaluation.transfer_data import TransferTask as TransferTask
    from csekit.evaluation.transfer_data import load_transfer as load_transfer

_PUBLIC = {
    "baselines": (
        "StaticTokens",
        "TfidfEncoder",
        "Whitening",
        "static_encoder",
    ),
    "clustering": (
        "ClusteringOptions",
        "ClusteringScores",
        "clustering_suite",
    ),
    "compare": (
        "Difference",
        "compare_runs",
    ),
    "geometry": (
        "alignment",
        "effective_rank",
        "label_free_criteria",
        "mean_cosine",
        "uniformity",
    ),
    "geometry_scores": (
        "GeometryOptions",
        "GeometryScores",
        "geometry_suite",
    ),
    "labelling": ("draw_pairs",),
    "metric": ("STSSpearman",),
    "mteb_adapter": (
        "MTEBEncoder",
        "banking77",
        "mteb_banking77_task",
        "mteb_retrieval_task",
        "mteb_sts_tasks",
    ),
    "neighbors": (
        "Neighbor",
        "QueryNeighbors",
        "nearest_neighbors",
    ),
    "pairs": (
        "Pairs",
        "read_pairs",
    ),
    "rank_vectors": ("RankEncoder",),
    "report.page": (
        "SearchData",
        "build_report",
        "write_report",
    ),
    "report.papers": (
        "PaperRow",
        "paper_table",
    ),
    "report.runs": (
        "ReportRun",
        "read_run",
    ),
    "results": (
        "read_results",
        "write_results",
    ),
    "retrieval": (
        "RetrievalScores",
        "evaluate_retrieval",
        "load_retrieval",
        "retrieval_suite",
        "stsb_retrieval",
    ),
    "retrieval_data": (
        "Collection",
        "CollectionGroup",
        "load_beir",
    ),
    "score_file": ("ScoreFile",),
    "search": ("search_blocks",),
    "sentences": (
        "draw_sentences",
        "read_sentences",
    ),
    "stored_search": ("search_embeddings",),
    "sts": (
        "STSScores",
        "evaluate_pairs",
        "evaluate_sts",
    ),
    "sts_data": (
        "load_sts",
        "load_sts_hub",
        "load_stsb_dev",
    ),
    "transfer": (
        "TransferScores",
        "evaluate_transfer",
    ),
    "transfer_data": (
        "TransferTask",
        "load_transfer",
    ),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"csekit.evaluation.{_HOME[name]}"), name)
    raise AttributeError(f"module 'csekit.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
