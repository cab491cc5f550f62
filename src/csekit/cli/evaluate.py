"""``csekit eval``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import (
    Imports,
    check_results_output,
    identity,
    one_line_errors,
    quiet_transformers,
    refuse_given,
    table,
)

if TYPE_CHECKING:
    from csekit.encoding.encoder import TextEncoder


def evaluate(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(help="A model folder, a name on the Hub, or 'tfidf'.")],
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data_dir",
            envvar="CSEKIT_DATA",
            help="Folder in SentEval's layout; 'hub' for the Hub's STS sets, all but SICK-R.",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            help="Separated by commas: sts, dev, transfer, … or all; STS12, MR, …; mteb:NAME. Default: sts, or none "
            "with --pairs, --retrieval, --classification.",
        ),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option("--pairs", help="TSV or CSV with columns sentence1, sentence2, score; repeatable."),
    ] = None,
    retrieval: Annotated[
        list[Path] | None, typer.Option("--retrieval", help="Folder in BEIR's format; repeatable.")
    ] = None,
    classification: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--classification",
            help="Train and test file: TSV or CSV with columns text (or sentence1, sentence2) and label.",
        ),
    ] = None,
    classification_dev: Annotated[
        Path | None,
        typer.Option("--classification_dev", help="Dev file that chooses the classifier's C, instead of folds."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Results file NAME.json; later calls add to it.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start the results file anew.")] = False,
    title: Annotated[str | None, typer.Option("--title", help="Title of the model's row in tables.")] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", help="cls, mean, last, first_last_mean, top2_mean, mask, static; for plain encoders."
        ),
    ] = None,
    whiten: Annotated[
        str | None,
        typer.Option("--whiten", help="Whiten the embeddings, fitted on each 'task' or on a file of sentences."),
    ] = None,
    whiten_dim: Annotated[
        int | None, typer.Option("--whiten_dim", help="Number of directions that --whiten keeps.")
    ] = None,
    rank_corpus: Annotated[
        str | None,
        typer.Option(
            "--rank_corpus",
            help="File of sentences: score by the mixture of the cosine and the similarity of the ranks that two "
            "texts give to these sentences (RankEncoder).",
        ),
    ] = None,
    rank_references: Annotated[
        int | None, typer.Option("--rank_references", help="Number of its sentences that are ranked; default: 10,000.")
    ] = None,
    rank_share: Annotated[
        float | None, typer.Option("--rank_share", help="Share of the ranks' similarity, from 0 to 1; default: 0.1.")
    ] = None,
    prompt_template: Annotated[
        str | None,
        typer.Option(
            "--prompt_template",
            help="Template with {sentence} and {mask}, for --pooling mask; last: {sentence} alone.",
        ),
    ] = None,
    truncate_dim: Annotated[
        list[int] | None,
        typer.Option(
            "--truncate_dim",
            help="Score the first dimensions of the embeddings, this many; repeatable: texts are encoded once, and "
            "--output NAME.json becomes NAME-SIZE.json.",
        ),
    ] = None,
    text_form: Annotated[
        str,
        typer.Option("--text_form", help="Text form of STS: tokenized (as in the papers) or raw; the Hub's is raw."),
    ] = "tokenized",
    mode: Annotated[str, typer.Option("--mode", help="Mode of transfer: test, or dev (training side only).")] = "test",
    seed: Annotated[int, typer.Option("--seed", help="Seed of transfer's folds.")] = 1111,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Truncate at this many tokens; default: the model's limit.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Maximum rows in a batch.")] = 64,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Score an encoder: STS, transfer and the other suites."""
    with one_line_errors():
        if classification_dev is not None and classification is None:
            raise ValueError("--classification_dev needs --classification TRAIN TEST")
        if len(set(truncate_dim or [])) < len(truncate_dim or []):
            raise ValueError(f"--truncate_dim must be different sizes, got {' '.join(map(str, truncate_dim or []))}")
        sizes: list[int | None] = [*truncate_dim] if truncate_dim else [None]
        outputs = [] if output is None else [output_of(output, size) for size in sizes]
        for file in outputs:
            check_results_output(file)
        files = (*(classification or ()), *([classification_dev] if classification_dev else []))
        from csekit.evaluation.suites import SuiteOptions, on_hub, options_of, own_data, resolve_suites

        quiet_transformers()
        chosen = own_data(pairs or (), retrieval or (), files)
        missing: tuple[str, ...] = ()
        if tasks is not None or not chosen:
            words, missing = on_hub(tasks or "sts") if data_dir == "hub" else (tasks or "sts", ())
            chosen = {**resolve_suites(words), **chosen}
        _refuse_unread(ctx, chosen, data_dir)
        if missing:
            typer.echo(f"not scored, since the Hub does not have it in the papers' form: {', '.join(missing)}")
        if data_dir is None and any(":" not in name for name in chosen):
            raise ValueError("--data_dir (or the environment variable CSEKIT_DATA) must name the folder with the sets")
        options = options_of(data_dir, SuiteOptions(text_form, mode, seed, progress))
        arguments = {"pooling": pooling, "max_length": max_length, "device": device}
        arguments |= {"prompt_template": prompt_template, "batch_size": batch_size}
        whitening = {"whiten": whiten, "dim": whiten_dim}
        ranks = {"corpus": rank_corpus, "references": rank_references, "share": rank_share}
        check_ranks(ranks, truncate_dim)
        loading = (arguments, whitening, ranks, truncate_dim)
        _score(path, chosen, data_dir, options, loading, (outputs, title, overwrite))


def _refuse_unread(ctx: typer.Context, chosen: dict[str, tuple[str, ...]], data_dir: str | None) -> None:
    """Raise ValueError for options that none of the chosen suites reads."""
    from csekit.evaluation.suites import suite_of

    read = {option for name in chosen for option in suite_of(name).options}
    suites = {"text_form": "sts, dev, retrieval or geometry", "mode": "transfer or --classification"}
    for option, words in (suites | {"seed": suites["mode"]}).items():
        if option not in read:
            refuse_given(ctx, [option], f"is for {words}, none of which is scored")
    folders = [name for name in chosen if ":" not in name and name not in ("sts", "dev")]
    if data_dir == "hub" and folders:
        raise ValueError(f"--data_dir must be a folder for {folders[0]}, got 'hub', which has STS sets alone")
    if data_dir == "hub" and "SICK-R" in chosen.get("sts", ()):
        raise ValueError("--tasks SICK-R is not on the Hub; SICK-R-all there has all 9,927 pairs of SICK")
    if not any(":" not in name or name.startswith("mteb:") for name in chosen):
        refuse_given(ctx, ["data_dir"], "is for --tasks, none of which is scored")
    if data_dir == "hub" and ctx.params["text_form"] != "raw":
        refuse_given(ctx, ["text_form"], "must be raw with --data_dir hub, whose texts are raw")
    if ctx.params["output"] is None:
        refuse_given(ctx, ["title", "overwrite"], "needs --output")


def check_ranks(ranks: dict[str, Any], truncate_dim: list[int] | None) -> None:
    """Raise ValueError for options of the ranks without their corpus, or beside sizes that would cut them."""
    for name in ("references", "share"):
        if ranks["corpus"] is None and ranks[name] is not None:
            raise ValueError(f"--rank_{name} needs --rank_corpus, a file of sentences")
    if ranks["corpus"] is not None and truncate_dim:
        raise ValueError("--truncate_dim must be left out with --rank_corpus: the last dimensions are ranks")


def output_of(output: Path, size: int | None) -> Path:
    """Return the results file of a size."""
    return output if size is None else output.with_name(f"{output.stem}-{size}{output.suffix}")


def _score(
    path: str,
    chosen: dict[str, tuple[str, ...]],
    data_dir: str | None,
    options: Any,
    encoder_arguments: Any,
    target: Any,
) -> None:
    """Load data, then the encoder; print each suite's scores when it finishes, and write them to ``--output``."""
    from csekit.evaluation.dimensions import cut_encoders
    from csekit.evaluation.suite_results import SuiteResults
    from csekit.evaluation.suites import (
        check_encoder,
        data_checksums,
        load_suites,
        score_suites,
        suite_key,
        suite_settings,
    )

    outputs, title, overwrite = target
    *whole, sizes = encoder_arguments
    data = load_suites(chosen, data_dir, options)
    encoder = _load(path, *whole)
    check_encoder(encoder, data)
    cuts: list[Any] = list(cut_encoders(encoder, sizes)) if sizes else [encoder]
    settings = {suite_key(name): suite_settings(name, tasks, options) for name, tasks in chosen.items()}
    checksums = {suite_key(name): data_checksums(loaded) for name, loaded in data.items()} if outputs else {}
    results = [
        SuiteResults(file, identity(path, each), each.name, title, settings, overwrite, checksums)
        for file, each in zip(outputs, cuts, strict=False)
    ]
    for name, loaded in data.items():
        if sizes:
            cuts[0].kept.clear()  # the next suite has other texts
        for place, each in enumerate(cuts):
            for _, scores, seconds in score_suites(each, {name: loaded}, options):
                typer.echo(table(*scores.table()))
                typer.echo(f"{each.name}: {name}, {seconds:.1f} s{_counts(each, scores)}\n")
                if results:
                    typer.echo(f"written: {results[place].add(suite_key(name), scores, seconds)}")


def _load(path: str, arguments: dict[str, Any], whitening: dict[str, Any], ranks: dict[str, Any]) -> "TextEncoder":
    """Load the encoder that the command line describes."""
    from csekit.evaluation.baselines import corpus_sentences
    from csekit.evaluation.rank_vectors import RankEncoder, spread

    if ranks["corpus"] is None:
        return _load_plain(path, arguments, whitening)
    file = ranks["corpus"]
    references = spread(corpus_sentences(file), 10_000 if ranks["references"] is None else ranks["references"])
    share = 0.1 if ranks["share"] is None else ranks["share"]
    return RankEncoder(_load_plain(path, arguments, whitening), references, share, Path(file).name)


def _load_plain(path: str, arguments: dict[str, Any], whitening: dict[str, Any]) -> "TextEncoder":
    """Load the encoder whose cosine is the similarity."""
    from csekit.encoding import load_encoder
    from csekit.evaluation.baselines import TfidfEncoder, Whitening, corpus_sentences, static_encoder

    if whitening["whiten"] is None and whitening["dim"] is not None:
        raise ValueError("--whiten_dim needs --whiten: 'task' or a file of sentences")
    if path == "tfidf" and not Path(path).exists():
        if whitening["whiten"] or any(arguments.get(name) for name in ("pooling", "prompt_template", "max_length")):
            raise ValueError("--pooling, --whiten, --prompt_template and --max_length must be left out for 'tfidf'")
        return TfidfEncoder()
    if arguments["pooling"] == "static":
        if arguments.get("prompt_template"):
            raise ValueError("--prompt_template must be left out with --pooling static, the mean of word vectors")
        encoder = static_encoder(path, arguments["max_length"], arguments["device"])
    else:
        encoder = load_encoder(path, **arguments)
    if whitening["whiten"] is None:
        return encoder
    if whitening["whiten"] == "task":
        return Whitening(encoder, dim=whitening["dim"])
    file = whitening["whiten"]
    return Whitening(encoder, corpus_sentences(file), whitening["dim"], Path(file).name)


def _counts(encoder: "TextEncoder", scores: Any) -> str:
    """Report how many sentences were encoded and cut, if the scores hold it."""
    if not hasattr(scores, "text_form"):
        return ""
    cut = "" if encoder.max_length is None else f", {scores.truncated} cut at {encoder.max_length} tokens"
    return f", {scores.text_form} text, {scores.sentences} distinct sentences{cut}"
