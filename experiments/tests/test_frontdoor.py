"""README's tables, made of small results files."""

import json
from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.frontdoor import METHODS, SAME_STEP
from experiments.tables.guide import METHODS as GUIDE
from experiments.tables.render import TableError, update


def page(name: str) -> str:
    return f"<!-- table:frontdoor/{name} -->\n<!-- end table -->\n"


def rows(text: str) -> list[list[str]]:
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def step(name: str, seconds: float, ratio: float = 1.0) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "time_ratio": ratio}


def encoded(side: str, precision: str, rate: float, speedup: float, **more: Any) -> dict[str, Any]:
    row = {"side": side, "precision": precision, "sentences_per_second": rate, "speedup": speedup}
    return {**row, "texts": "wiki.txt", "pooling": "cls", **more}


def test_beside_takes_each_number_from_its_own_row(tmp_path: Path) -> None:
    run = {"backbone": "mini", "corpus": "wiki.txt", "threads": 2, "batch_size": 64, "max_seq_length": 32}
    steps = [step("simcse-fp32", 0.2), step("st-fp32", 0.5, 2.5), step("simcse-bf16", 0.1), step("st-bf16", 0.3, 3.0)]
    write_results(tmp_path / "peers/mini-wiki-cpu.json", {"run": {**run, "repetitions": 20}, "methods": steps})
    speeds = []
    for precision, rate in (("fp32", 100.0), ("bf16", 200.0)):
        for other in ({}, {"pooling": "mean"}, {"texts": "dev.tsv"}):  # only the first kind is shown
            factor = 10 if other else 1
            speeds.append(encoded("sentence-transformers", precision, rate * factor, 1.0, **other))
            speeds.append(encoded("csekit", precision, 1.5 * rate * factor, 1.5 * factor, **other))
    content = {"run": {"repetitions": 5}, "rows": speeds}
    write_results(tmp_path / "benchmarks/encode-mini-wiki-cpu.json", content)
    text = update(page("beside"), tmp_path)
    cells = {row[0]: row[1:] for row in rows(text)}
    assert cells["training step, fp32"] == ["200 ms (2.50 × as fast)", "500 ms"]
    assert cells["training step, bf16"] == ["100 ms (3.00 × as fast)", "300 ms"]
    assert cells["encoding, fp32"] == ["150 sentences/s (1.50 × as fast)", "100 sentences/s"]
    assert cells["encoding, bf16"] == ["300 sentences/s (1.50 × as fast)", "200 sentences/s"]
    assert "|---|---|---|\n" in text
    assert "a step in bf16" not in text
    on_gpu = {"run": run, "methods": [step("st-bf16", 0.3, 2.25)], "environment": {"device": "G100"}}
    write_results(tmp_path / "gpu/peers-minilm-wiki.json", on_gpu)
    text = update(page("beside"), tmp_path)
    assert "On one G100 a step in bf16 of minilm-wiki is 2.25 × as fast; encoding and one whole run" in text

    write_results(tmp_path / "peers/mini-wiki-cpu.json", {"run": {**run, "repetitions": 20}, "methods": steps[:3]})
    with pytest.raises(TableError, match="must have a row 'st-bf16'"):
        update(page("beside"), tmp_path)


def test_methods_have_the_cost_of_their_row(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such results file"):
        update(page("methods"), tmp_path)
    run = {"backbone": "mini", "precision": "bf16", "threads": 2}
    costs = [step(name, 1.0, 1 + number / 4) for number, name in enumerate(METHODS)]
    write_results(tmp_path / "costs/mini-wiki-cpu-bf16.json", {"run": run, "methods": costs[::-1]})
    body = rows(update(page("methods"), tmp_path))[2:]
    assert [row[-1] for row in body] == ["1.00 ×", "1.25 ×", "1.50 ×", "1.75 ×", "2.00 ×", "2.25 ×"]
    assert [row[2] for row in body][-2:] == ["`MSSEModel`", "`CSEModel`"]


def experiment(title: str, mean: float, **more: Any) -> dict[str, Any]:
    row = {"title": title, "test": {"Avg": {"mean": mean, "std": 0.5}}, "finished_seeds": [42, 43, 44]}
    return {**row, **more}


def test_averages_compare_with_the_same_start(tmp_path: Path) -> None:
    plans: dict[str, dict[str, Any]] = {
        "equal-terms": {
            "untrained-cls": experiment("untrained", 55.0, finished_seeds=[None]),
            "simcse-tanh": experiment("tanh", 60.0),
            "simcse-batchnorm": experiment("batchnorm", 59.0, p_value=0.75),
            "informin": experiment("InforMin-CL", 61.0, p_value=0.0001),
        },
        "infocse-diffcse": {
            "simcse-tanh": experiment("tanh", 60.0),
            "simcse-stage1": experiment("stage 1", 62.0, p_value=0.25),
            "infocse": experiment("InfoCSE", 61.5, p_value=0.001),
            "diffcse": experiment("DiffCSE", 60.5),
            "joint": experiment("both", 62.5),
        },
    }
    for plan, experiments in plans.items():
        (tmp_path / plan).mkdir()
        margins = {"infocse": {"simcse-stage1": {"p_value": 0.9}, "simcse-tanh": {"p_value": 0.001}}}
        content = {"baseline": "simcse-tanh", "experiments": experiments, "margins": {"rows": margins}}
        (tmp_path / plan / "summary.json").write_text(json.dumps(content))
    body = {row[0]: row[1:] for row in rows(update(page("averages"), tmp_path))}
    assert body["untrained"] == ["55.00 ± 0.50", "", "", "", "1"]
    assert body["batchnorm"] == ["59.00 ± 0.50", "-1.00", "tanh", "0.750", "3"]
    assert body["InforMin-CL"] == ["61.00 ± 0.50", "+1.00", "tanh", "< 0.001", "3"]
    assert body["InfoCSE"] == ["61.50 ± 0.50", "-0.50", "stage 1", "0.900", "3"]  # not its p against tanh
    assert body["both"] == ["62.50 ± 0.50", "+0.50", "stage 1", "", "3"]
    del plans["equal-terms"]["informin"]
    (tmp_path / "equal-terms" / "summary.json").write_text(
        json.dumps({"baseline": "simcse-tanh", "experiments": plans["equal-terms"], "margins": None})
    )
    with pytest.raises(TableError, match="equal-terms must have a row 'informin'"):
        update(page("averages"), tmp_path)


def test_the_field_has_its_best_row_first_and_the_cost_of_each_step(tmp_path: Path) -> None:
    trained = {"kind": "selected", "backbone": ["mini"]}
    experiments = {
        "simcse": experiment("SimCSE", 60.0, **trained),
        "tfidf": experiment("TF-IDF", 62.0, kind="command", finished_seeds=[None]),
        "dclr": experiment("DCLR", 61.0, p_value=0.25, **trained),
        "pcl": {"title": "PCL", "kind": "selected", "finished_seeds": []},  # not run yet
    }
    spread = {"mean": 1.0, "std": 0.25, "n": 3, "p_value": 0.125}
    margins = {"rows": {"dclr": {"simcse": spread}}, "paper": {"dclr": 0.97, "pcl": 2.17}, "source": "its Table 1"}
    summary = {"baseline": "simcse", "experiments": experiments, "margins": margins}
    (tmp_path / "field").mkdir()
    (tmp_path / "field" / "summary.json").write_text(json.dumps(summary))
    text = update(page("field"), tmp_path)
    assert rows(text)[0] == ["", "Avg", "margin", "p", "paper"]
    assert rows(text)[2:] == [
        ["TF-IDF", "62.00 ± 0.50", "", "", ""],
        ["DCLR", "61.00 ± 0.50", "+1.00 ± 0.25", "0.125", "+0.97"],
        ["SimCSE", "60.00 ± 0.50", "", "", ""],
    ]
    assert "backbone mini, stand-in Wikipedia corpus" in text
    assert "its Table 1" in text
    costs = [step("simcse", 1.0), step("dclr", 1.5, 1.52), step("pcl", 9.0, 9.0)]
    run = {"precision": "bf16", "repetitions": 5}
    write_results(tmp_path / "costs/field-minilm-wiki-cpu-bf16.json", {"run": run, "methods": costs})
    text = update(page("field"), tmp_path)
    assert "relative to SimCSE's, median of 5, on CPU in bf16" in text
    assert [row[-1] for row in rows(text)] == ["step", "---:", "", "1.5 ×", "1.0 ×"]
    experiments["dclr"]["finished_seeds"] = [42]
    (tmp_path / "field" / "summary.json").write_text(json.dumps(summary))
    text = update(page("field"), tmp_path)
    assert [row[-2] for row in rows(text)] == ["seeds", "---:", "", "1", "3"] and "over the seeds of a row" in text
    del summary["experiments"]["simcse"]
    (tmp_path / "field" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(TableError, match="field must have a row 'simcse'"):
        update(page("field"), tmp_path)


def test_equal_terms_borrow_what_needs_no_training_from_the_field(tmp_path: Path) -> None:
    trained = {"kind": "selected", "backbone": ["mini"]}
    untrained = {"kind": "command", "finished_seeds": [None]}
    plans = {
        "equal-terms-minilm": {
            "simcse": experiment("SimCSE", 60.0, **trained),
            "pcl": experiment("PCL", 61.0, **trained),
            "simcse-stage1": experiment("SimCSE from stage 1", 59.0, **trained),
        },
        "field": {"simcse": experiment("not this one", 90.0), "tfidf": experiment("TF-IDF", 62.0, **untrained)},
    }
    for plan, experiments in plans.items():
        margins = {"rows": {"pcl": {"simcse": {"mean": 1.0, "std": 0.25, "n": 3}}}, "source": "its Table 1"}
        write_results(
            tmp_path / plan / "summary.json", {"baseline": "simcse", "experiments": experiments, "margins": margins}
        )
    run = {"trial": {"arguments": {"max_steps": "600"}}}
    write_results(tmp_path / "equal-terms-minilm/simcse/seed=42.json", run)
    text = update(page("equal"), tmp_path)
    assert "600 steps" in text and "backbone mini" in text
    assert [row[:3] for row in rows(text)[2:]] == [
        ["TF-IDF", "62.00 ± 0.50", ""],
        ["PCL", "61.00 ± 0.50", "+1.00 ± 0.25"],
        ["SimCSE", "60.00 ± 0.50", ""],
        ["SimCSE from stage 1", "59.00 ± 0.50", ""],
    ]
    steps = {"run": {"precision": "bf16", "repetitions": 5}}
    write_results(
        tmp_path / "costs/field-minilm-wiki-cpu-bf16.json", steps | {"methods": [step("pcl", 7.0)]}
    )  # the field's own
    costs = [step("simcse", 1.0), step("simcse-batchnorm", 1.25, 1.3), step("pcl", 9.0, 9.0)]
    write_results(tmp_path / "costs/equal-terms-minilm-cpu-bf16.json", steps | {"methods": costs})
    text = update(page("equal"), tmp_path)
    assert [row[-1] for row in rows(text)] == ["step", "---:", "", "9.0 ×", "1.0 ×", "1.3 ×"]


def test_the_guide_takes_each_margin_over_its_control(tmp_path: Path) -> None:
    titles = {name: method.name for name, method in GUIDE.items()}
    bases = {"simcse", "simcse-mean", "simcse-batchnorm", "prompt"}
    experiments = {name: experiment(f"title of {name}", 60.0) for name in bases | set(titles)}
    found = {
        name: {base: {"mean": number + len(base) / 100, "std": 0.5, "n": 3, "p_value": 0.25} for base in bases}
        for number, name in enumerate(titles, 1)
    }
    margins = {"rows": found, "paper": {"arccse": 1.86}, "source": "its Table 1"}
    summary = {"baseline": "simcse", "experiments": experiments, "margins": margins}
    (tmp_path / "field").mkdir()
    (tmp_path / "field" / "summary.json").write_text(json.dumps(summary))
    costs = [step(SAME_STEP.get(name, name), 1.0, 1.5) for name in titles]
    write_results(tmp_path / "costs/field-minilm-wiki-cpu-bf16.json", {"methods": costs})
    marker = "<!-- table:guide -->\n<!-- end table -->\n"
    body = {row[0]: row[1:] for row in rows(update(marker, tmp_path))[2:]}
    assert list(body) == [*reversed(list(titles.values())[1:]), "SimCSE"]
    diffcse = list(titles).index("diffcse") + 1
    assert body["DiffCSE"][2:7] == [
        "1.5 ×",
        f"+{diffcse + 0.16:.2f} ± 0.50",
        "title of simcse-batchnorm",
        "0.250",
        "3",
    ]
    assert body["[ArcCSE](#arccse)"][4] == "title of simcse" and body["[ArcCSE](#arccse)"][7:9] == ["", "+1.86"]
    assert body["SimCSE"][3:9] == ["", "", "", "", "", ""]
    assert body["[MSSE](#msse-the-paper-and-its-repository)"][2] == "1.5 ×"
    (tmp_path / "equal-terms-minilm").mkdir()
    long = {"arccse": {"simcse": {"mean": 0.25, "std": 0.5}}, "msse": {"prompt": {"mean": 0.75, "std": None}}}
    bases = {"simcse": {"title": "title of simcse"}, "prompt": {"title": "another prompt"}}
    equal = {"experiments": bases, "margins": {"rows": long}}
    (tmp_path / "equal-terms-minilm" / "summary.json").write_text(json.dumps(equal))
    body = {row[0]: row[1:] for row in rows(update(marker, tmp_path))[2:]}
    assert body["[ArcCSE](#arccse)"][7:9] == ["+0.25 ± 0.50", "+1.86"] and body["DiffCSE"][7] == ""
    assert body["[MSSE](#msse-the-paper-and-its-repository)"][7] == "+0.75 over another prompt"
    del found["tsdae"]
    (tmp_path / "field" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(TableError, match="field must have a row 'tsdae'"):
        update(marker, tmp_path)
