"""Two processes on gloo with half a batch each give the loss and the gradients of one process with the whole batch."""

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

WORKER = Path(__file__).parent / "distributed_worker.py"
worker = SimpleNamespace(**runpy.run_path(str(WORKER)))
CASES = list(worker.CASES)
CONTRAST = {"positive_cosine", "negative_cosine", "alignment"}
#: Of each term the diagnostics that average over processes to those of the joined batch.
AVERAGED = {
    "contrastive": set(),
    "reconstruction": set(),
    "mlm": {"mlm_accuracy"},
    "aux_mlm": {"aux_mlm_accuracy", "aux_mlm_cross_entropy"},
    "rtd": {"rtd_accuracy_replaced", "rtd_accuracy_kept"},
    "edited": set(),
    "dcm": {"dcm_diagonal", "dcm_off_diagonal"},
    "icm": {"icm_cross_entropy"},
    "consistency": set(),
    "rank": {"rank_agreement"},
    "distill": {"distill_agreement"},
    "margin": {"margin_order"},
    "triplet": {"triplet_violations"},
    "group": {"group_positives"},
    "peer": {"peer_divergence", "peer_contrastive", "peer_group"},
    "attention": {"attention_information"},
    "smoothing": {"smoothing_cosine"},
    "tsdae": {"tsdae_accuracy"},
    "towers": {"towers_same", "towers_different"},
    "token_information": {"token_information_accuracy"},
}
#: Those of the objectives that change the contrast, which have no term.
MODIFIED = {"guided_left_out", "noise_cosine", "queue_cosine"}
#: The contrast of each size of Matryoshka training.
MODIFIED |= {"contrastive_4", "contrastive_5", "contrastive_9"}
#: Diagnostics that do not: a logarithm of a mean, and those that are measured on each process's own sentences.
OTHERS = {"uniformity", "icm_gap", "aux_mlm_gap", "rtd_gap"}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Any]:
    """What each case gives: in this process on the joined batch (``-``), and in two (``0``, ``1``)."""
    folder = tmp_path_factory.mktemp("distributed")
    worker.write_generator(folder / "generator")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [[sys.executable, str(WORKER), rank, port, str(folder)] for rank in ("0", "1")]
    processes = [
        subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for each in arguments
    ]
    try:
        one = {name: worker.run(None, folder / "generator", **case) for name, case in worker.CASES.items()}
        one |= {"pretrain": worker.pretrain(None), "pretrain_rtd": worker.pretrain(None, "rtd")}
        for process in processes:
            printed, _ = process.communicate(timeout=400)
            assert process.returncode == 0, printed.decode()
    finally:
        for process in processes:
            process.kill()
    return {"-": one, **{rank: torch.load(folder / f"{rank}.pt") for rank in ("0", "1")}}


def close(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("case", [*CASES, "pretrain", "pretrain_rtd"])
def test_terms_and_gradients_equal_one_process(results, case):
    one, two = results["-"][case], [results[rank][case] for rank in ("0", "1")]
    assert one["loss_dict"].keys() == two[0]["loss_dict"].keys() == two[1]["loss_dict"].keys() != set()
    for term, value in one["loss_dict"].items():
        close(sum(each["loss_dict"][term] for each in two) / 2, value, term)
    assert one["gradients"].keys() == two[0]["gradients"].keys() == two[1]["gradients"].keys()
    for name, gradient in one["gradients"].items():
        close(two[0]["gradients"][name], gradient, name)
        assert torch.equal(two[0]["gradients"][name], two[1]["gradients"][name]), name
    assert any(gradient.abs().max() > 1e-2 for gradient in one["gradients"].values())


@pytest.mark.parametrize("case", ["batchnorm", "batchnorm_triplets"])
def test_running_statistics_equal_one_process(results, case):
    one, two = results["-"][case]["buffers"], [results[rank][case]["buffers"] for rank in ("0", "1")]
    assert len(one) == 6
    assert one.keys() == two[0].keys() == two[1].keys()
    for name, value in one.items():
        close(two[0][name].double(), value.double(), name)
        close(two[0][name].double(), two[1][name].double(), name)


@pytest.mark.parametrize(
    "case", ["queue", "queue_batchnorm", "chunks_modifiers", "chunks_templates", "chunks_whitening"]
)
def test_the_queue_is_the_same_on_all_processes_and_in_one(results, case):
    one, two = results["-"][case]["buffers"], [results[rank][case]["buffers"] for rank in ("0", "1")]
    queue = {name.removeprefix("objectives.queue."): value for name, value in one.items() if "queue" in name}
    assert queue["count"] == len(queue["keys_MH"])  # two steps of eight sentences
    for name, value in queue.items():
        ours, other = (each[f"objectives.queue.{name}"] for each in two)
        close(ours.double(), value.double(), name)
        assert torch.equal(ours, other), name


@pytest.mark.parametrize("case", ["smoothing", "chunks_smoothing", "matryoshka_smoothing"])
def test_the_memory_is_the_same_on_all_processes_and_in_one(results, case):
    one, two = results["-"][case]["buffers"], [results[rank][case]["buffers"] for rank in ("0", "1")]
    memory = {name: value for name, value in one.items() if "smoothing" in name}
    assert memory["objectives.smoothing.count"] == 13  # two steps of eight sentences
    for name, value in memory.items():
        close(two[0][name].double(), value.double(), name)
        assert torch.equal(two[0][name], two[1][name]), name


@pytest.mark.parametrize("case", CASES)
def test_diagnostics_average_to_those_of_one_process(results, case):
    one, two = results["-"][case]["metrics"], [results[rank][case]["metrics"] for rank in ("0", "1")]
    assert one.keys() == two[0].keys() == two[1].keys()
    averaged = CONTRAST.union(*(AVERAGED[term] for term in results["-"][case]["loss_dict"]), one.keys() & MODIFIED)
    assert one.keys() - OTHERS == averaged | {"identical_texts"}
    for name in averaged:
        close((two[0][name] + two[1][name]) / 2, one[name], name)
    close(two[0]["identical_texts"] + two[1]["identical_texts"], one["identical_texts"], "identical_texts")
    assert one["identical_texts"] == 2


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("pretrain", {"mlm_accuracy", "aux_mlm_accuracy"}),
        ("pretrain_rtd", {"mlm_accuracy", "rtd_accuracy_replaced", "rtd_accuracy_kept", "replaced"}),
    ],
)
def test_accuracies_of_pretraining_average_to_those_of_one_process(results, case, names):
    one, two = results["-"][case]["metrics"], [results[rank][case]["metrics"] for rank in ("0", "1")]
    assert one.keys() == two[0].keys() == two[1].keys() == names
    for name, value in one.items():
        close((two[0][name] + two[1][name]) / 2, value, name)


def test_masking_identical_texts_changes_the_loss(results):
    masked, plain = (results["-"][case]["loss_dict"]["contrastive"] for case in ("mask_identical", "symmetric"))
    assert masked < plain


def test_ragged_token_counts(results):
    assert results["-"]["mlm"]["loss_dict"]["mlm"] > 0
    assert results["1"]["mlm"]["loss_dict"]["mlm"] == 0  # no masked token on this process
    assert results["-"]["mlm_none"]["loss_dict"]["mlm"] == 0
    assert results["1"]["aux_mlm_alone"]["loss_dict"].keys() == {"aux_mlm"}  # no contrast: its projector is frozen
    assert results["1"]["aux_mlm_alone"]["loss_dict"]["aux_mlm"] == 0
    assert not any(name.startswith("projector") for name in results["1"]["aux_mlm_alone"]["gradients"])


def test_replaced_and_kept_tokens(results):
    """The generator changes tokens on both processes, so that the cases are about something."""
    for case in ("rtd", "rtd_ragged", "rtd_released"):
        metrics = [results[rank][case]["metrics"] for rank in "-01"]
        assert all(each["rtd_accuracy_replaced"] + each["rtd_accuracy_kept"] > 0 for each in metrics)
        assert results["-"][case]["loss_dict"]["rtd"] > 0
    assert results["-"]["edited_negative"]["loss_dict"]["edited"] > 0


def test_dimension_contrast_and_targets_cross_processes(results):
    """C is that of the joined batch on both; targets of unequal length weigh by their tokens."""
    for case in ("dcm", "dcm_sum", "dcm_alone", "msse"):
        terms = [results[rank][case]["loss_dict"]["dcm"] for rank in "-01"]
        close(terms[1], terms[0], case)
        assert torch.equal(terms[1], terms[2])
    for case in ("icm", "icm_denoising", "icm_z", "msse"):
        terms = [results[rank][case]["loss_dict"]["icm"] for rank in "01"]
        assert not torch.isclose(*terms)
    assert not any(name.startswith("projector") for name in results["1"]["dcm_alone"]["gradients"])
    assert any(name.startswith("projector") for name in results["1"]["icm_z"]["gradients"])


def test_collectives_by_hand(results):
    """The backward of each process receives what all processes send: sums, for DDP to average."""
    rows = [torch.arange(6.0).view(3, 2) + 10 * rank for rank in range(2)]
    weights = torch.arange(12.0).view(6, 2)
    for rank in range(2):
        found = results[str(rank)]["collectives"]
        assert torch.equal(found["gathered"], torch.cat(rows))
        assert torch.equal(found["gather_gradient"], (weights * (1 + 2))[3 * rank : 3 * rank + 3])
        assert torch.equal(found["sum"], torch.tensor([3.0, 5.0]))
        assert torch.equal(found["sum_gradient"], 2 * torch.tensor([3.0, 5.0]) * (1 + 2))
        assert found["mean"].item() == pytest.approx((3.0 + rank) * 2 * 2 / 5)
        assert found["mean_gradient"].item() == pytest.approx(2 * 2 / 5)
