"""The model card of a run, written from its results."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

#: Names of the STS sets on the Hub, for the card's metadata.
HUB_SETS = {
    **{f"STS{year}": f"mteb/sts{year}-sts" for year in range(12, 17)},
    "STS-B": "mteb/stsbenchmark-sts",
    "SICK-R": "mteb/sickr-sts",
}

_HOW = {"pairs": "on sentence pairs", "triplets": "on triplets of sentence, positive and hard negative"}

_TEXT = """---
{metadata}
---

# {title}

A sentence encoder trained {how} by [csekit](https://pypi.org/project/csekit/): method **{method}**, from
**{backbone}**, on **{corpus}** ({rows} rows).

**Pooling: {pooling}.** With another pooling the embeddings are not those that were trained and scored.{template}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{path}"{code})
embeddings = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])
```

{transformers}

## Scores

Spearman × 100, cosine similarity, {text_form} texts.

{table}
{overlap}
## Training

{setting}

The corpus and the backbone decide what these numbers can be compared with; they are not those of the method's paper
unless both are the paper's. Intended use: similarity, search and clustering of single sentences in the language of the
corpus. Long texts, other languages and decisions about people were not evaluated.
"""

_TEMPLATE = """
The tokenizer puts the prompt template `{template}` around every text by itself."""

_CODE = """ Its mask token is not the last token, which
sentence-transformers has no pooling for: it runs `template_pooling.py` of this folder, and asks for leave."""

_TRANSFORMERS = """```python
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("{path}"), AutoModel.from_pretrained("{path}")
batch = tokenizer(["A man is playing a guitar."], padding=True, return_tensors="pt")
states = model(**batch).last_hidden_state
embeddings = {embeddings}
```"""

_DENSE = "With Transformers alone the vector is the one in front of the projector, which is in the `Dense` folders."


def _with_transformers(config: dict[str, Any], path: str) -> str:
    """How to come by the embeddings with Transformers alone, or nothing."""
    if config.get("projector_at_inference"):
        return _DENSE
    offset = config.get("prompt_mask_offset") or 0
    places = {
        "cls": "states[:, 0]",
        "mask": f"states[:, {offset}]"
        if offset >= 0
        else f'states[torch.arange(len(states)), batch["attention_mask"].sum(1) - {-offset}]  # the mask token',
    }
    place = places.get(config["pooling"])
    return "" if place is None else _TRANSFORMERS.format(path=path, embeddings=place)


def _table(results: dict[str, Any]) -> str:
    dev, test = results["dev"], results["test"] or {"tasks": {}, "avg": None}
    rows = {f"dev: {name}": value for name, value in dev["after"].items()}
    rows |= {name: scores["all"] for name, scores in test["tasks"].items()}
    if test["avg"] is not None:
        rows["Avg of the seven"] = test["avg"]
    lines = [f"| {name} | {value:.2f} |" for name, value in rows.items()]
    return "\n".join(["| set | score |", "|---|---|", *lines])


def _overlap(results: dict[str, Any]) -> str:
    """What is to be said of evaluation sentences that were trained on."""
    found = results.get("overlap")
    if not found or not found["rows"] or found["filtered"]:
        return ""
    sets = ", ".join(name for name, count in found["sets"].items() if count["sentences"])
    return (
        f"\n{found['rows']:,} of the training rows hold a sentence of an evaluation set ({sets}), which was trained "
        "on: these scores are better than those on unseen sentences.\n"
    )


def write_model_card(folder: str | Path, results: dict[str, Any], base_model: str) -> Path:
    """Write ``README.md`` into an export.

    Arguments:
        folder: of the export.
        results: of the run, as ``run_results`` makes them.
        base_model: named in the metadata where it is a Hub id, not where it is a folder.
    """
    folder = Path(folder).resolve()
    test = results["test"] or {"tasks": {}, "avg": None, "text_form": "raw"}
    evaluations = [
        EvalResult(
            task_type="sts",
            dataset_type=HUB_SETS[name],
            dataset_name=name,
            metric_type="cosine_spearman",
            metric_value=round(scores["all"], 2),
        )
        for name, scores in test["tasks"].items()
        if name in HUB_SETS
    ]
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["csekit", "sentence-similarity", "feature-extraction", results["method"]],
        base_model=None if Path(base_model).exists() else base_model,
        model_name=folder.name,
        eval_results=evaluations or None,
    )
    config = results["config"]
    template = config.get("prompt_template")
    needs_code = config["pooling"] == "mask" and config.get("prompt_mask_offset") != -1
    setting = {**results["config"], **results["arguments"], "seed": results["seed"], **results["seconds"]}
    content = _TEXT.format(
        metadata=data.to_yaml(),
        how=_HOW.get(results.get("positives", ""), "without labels"),
        overlap=_overlap(results),
        title=folder.name,
        method=results["method"],
        backbone=results["backbone"],
        corpus=results["corpus"]["name"],
        rows=results["corpus"].get("used"),
        pooling=config["pooling"],
        template="" if template is None else _TEMPLATE.format(template=template) + (_CODE if needs_code else ""),
        code=", trust_remote_code=True" if needs_code else "",
        path=folder.name,
        transformers=_with_transformers(config, folder.name),
        text_form=test["text_form"],
        table=_table(results),
        setting="\n".join(f"- `{name}`: {value}" for name, value in setting.items() if value not in (None, [], {})),
    )
    path = folder / "README.md"
    ModelCard(content, ignore_metadata_errors=True).save(path)
    return path
