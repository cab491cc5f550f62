"""``csekit geometry``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import (
    Imports,
    at_least,
    check_output,
    check_results_output,
    identity,
    one_line_errors,
    quiet_transformers,
    refuse_given,
    table,
)

if TYPE_CHECKING:
    from csekit.encoding import TextEncoder
    from csekit.evaluation import ClusteringOptions, GeometryOptions


def geometry(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(help="A model folder, or a name on the Hub.")],
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data_dir", envvar="CSEKIT_DATA", help="Folder in SentEval's layout, with stackoverflow/ for clustering."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Results file NAME.json.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title in tables and pictures.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run's results file.")] = False,
    split: Annotated[str, typer.Option("--split", help="Split of STS-B: test or dev.")] = "test",
    threshold: Annotated[
        float, typer.Option("--threshold", help="Pairs with a higher gold score are positives.")
    ] = 4.0,
    clustering: Annotated[
        bool, typer.Option("--clustering/--no_clustering", help="Also cluster the StackOverflow titles.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="Seed of K-Means and t-SNE.")] = 42,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", help="Cluster this file instead: TSV, CSV or parquet with a text and a label."),
    ] = None,
    text_column: Annotated[str, typer.Option("--text_column", help="Column of --labelled with the text.")] = "text",
    label_column: Annotated[
        str, typer.Option("--label_column", help="Column of --labelled with the label.")
    ] = "label",
    points: Annotated[int, typer.Option("--points", help="Texts on the map, drawn by the seed; 0: no map.")] = 1000,
    point_clusters: Annotated[
        int | None,
        typer.Option("--point_clusters", help="K-Means clusters on the map; 30 of titles, else as many as labels."),
    ] = None,
    perplexity: Annotated[float, typer.Option("--perplexity", help="Perplexity of t-SNE.")] = 30.0,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Picture NAME.png of --labelled: its map, with a legend.")
    ] = None,
    colour: Annotated[
        str, typer.Option("--colour", help="Colour the picture by labels or by (K-Means) clusters.")
    ] = "labels",
    pooling: Annotated[
        str | None, typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean; for plain encoders.")
    ] = None,
    text_form: Annotated[
        str, typer.Option("--text_form", help="Text form: tokenized (as in the papers) or raw.")
    ] = "tokenized",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one.")
    ] = None,
    imports: Imports = None,
) -> None:
    """Measure an encoder's space: alignment, uniformity, anisotropy, clusters of titles or of a file, a map."""
    with one_line_errors():
        if output is not None:
            check_results_output(output)
        _check_picture(picture, labelled, points, colour)
        _refuse_unread(ctx)
        if picture is not None:
            check_output(picture)
        target = (output, title, overwrite)
        if labelled is not None:
            source = (labelled, text_column, label_column)
            shape = {"points": points, "point_clusters": point_clusters, "perplexity": perplexity, "seed": seed}
            return _score_labelled(path, source, shape, (pooling, device), target, (picture, colour))
        if data_dir is None:
            raise ValueError("--data_dir (or the environment variable CSEKIT_DATA) must name the folder with the data")
        quiet_transformers()
        from csekit.encoding import load_encoder
        from csekit.evaluation import ClusteringOptions, GeometryOptions

        options = GeometryOptions(split=split, threshold=threshold, text_form=text_form)
        clusters = None
        if clustering:
            clusters = ClusteringOptions(
                points=points, point_clusters=point_clusters or 30, perplexity=perplexity, seed=seed
            )
        data = _load(data_dir, options, clusters)
        encoder = load_encoder(path, pooling=pooling, device=device)
        run = _described(path, encoder, *_settings(data, options, clusters), target)
        started = time.perf_counter()
        found = _measure(encoder, data, options, clusters)
        if output is not None:
            seconds = time.perf_counter() - started
            _write(output, run, found, (encoder.name, title or encoder.name), round(seconds, 1), overwrite)
            typer.echo(f"written: {output}")


def _refuse_unread(ctx: typer.Context) -> None:
    """Raise ValueError for options that the chosen scores, map and picture do not read."""
    given = ctx.params
    at_least("--point_clusters", given["point_clusters"], 1)
    if given["labelled"] is not None:
        pairs = ["data_dir", "split", "threshold", "clustering", "text_form"]
        refuse_given(ctx, pairs, "must be left out with --labelled, which is scored instead of STS-B and the titles")
    else:
        refuse_given(ctx, ["text_column", "label_column"], "needs --labelled FILE")
        if not given["clustering"]:
            reason = "has no effect with --no_clustering"
            refuse_given(ctx, ["points", "point_clusters", "perplexity", "seed"], reason)
    if given["points"] == 0:
        refuse_given(ctx, ["point_clusters", "perplexity"], "is for the map, which --points 0 leaves out")
    if given["picture"] is None:
        refuse_given(ctx, ["colour"], "needs --picture NAME.png")
    if given["output"] is None:
        refuse_given(ctx, ["overwrite"], "needs --output")
        if given["picture"] is None:
            refuse_given(ctx, ["title"], "needs --output or --picture")


def _check_picture(picture: Path | None, labelled: Path | None, points: int, colour: str) -> None:
    """Raise ValueError for a picture that cannot be drawn, before anything is loaded."""
    if colour not in ("labels", "clusters"):
        raise ValueError(f"--colour must be 'labels' or 'clusters', got {colour!r}")
    if picture is None:
        return
    if picture.suffix != ".png":
        raise ValueError(f"--picture must end in .png, got {picture.name!r}")
    if labelled is None:
        raise ValueError("--picture needs --labelled FILE; csekit figures draws the titles from --output")
    if points == 0:
        raise ValueError("--picture needs a map, got --points 0")


def _score_labelled(
    path: str,
    file: tuple[Path, str, str],
    shape: dict[str, Any],
    loading: tuple[str | None, str | None],
    target: tuple[Path | None, str | None, bool],
    drawn: tuple[Path | None, str],
) -> None:
    """Cluster the texts of a labelled file, print the scores, write results file and picture."""
    quiet_transformers()
    from csekit.encoding import load_encoder
    from csekit.evaluation import ClusteringOptions
    from csekit.evaluation.clustering import cluster_texts
    from csekit.evaluation.figures import check_labels, topic_maps
    from csekit.evaluation.own_data import load_labelled
    from csekit.evaluation.plotting import load_matplotlib, save_figure

    (picture, colour), (output, title, overwrite) = drawn, target
    if picture is not None:
        load_matplotlib()
    texts = load_labelled(*file)
    if picture is not None and colour == "labels":
        check_labels(len(texts.names))
    points, clusters = min(shape["points"], len(texts.texts)), shape["point_clusters"] or len(texts.names)
    options = ClusteringOptions(
        points=points, point_clusters=clusters, perplexity=shape["perplexity"], seed=shape["seed"]
    )
    encoder = load_encoder(path, pooling=loading[0], device=loading[1])
    run = _described(path, encoder, {"clustering": options}, {"clustering": texts.checksum()}, target)
    started = time.perf_counter()
    scores = cluster_texts(encoder, texts, options)
    seconds = round(time.perf_counter() - started, 1)
    typer.echo(table(*scores.table()) + "\n")
    if output is not None:
        _write(output, run, {"clustering": scores}, (encoder.name, title or encoder.name), seconds, overwrite)
        typer.echo(f"written: {output}")
    if picture is not None and scores.map is not None:
        head = f"{title or encoder.name}: V-measure {scores.v_measure:.1f}"
        written = save_figure(topic_maps({head: scores.map}, colour, legend=True), picture, max_bytes=None)
        typer.echo(f"written: {written}")


def _load(data_dir: str, options: "GeometryOptions", clusters: "ClusteringOptions | None") -> tuple[Any, Any]:
    """Load the pairs, and the titles if they are clustered, before the encoder: a missing file stops at once."""
    from csekit.evaluation.clustering import load_stackoverflow
    from csekit.evaluation.geometry_scores import SPLITS
    from csekit.evaluation.sts_data import load_sts

    (pairs,) = load_sts(data_dir, SPLITS[options.split], options.text_form)
    if clusters is None:
        return pairs, None
    try:
        return pairs, load_stackoverflow(data_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} (--no_clustering works without)") from None


def _measure(
    encoder: "TextEncoder", data: tuple[Any, Any], options: "GeometryOptions", clusters: "ClusteringOptions | None"
) -> dict[str, Any]:
    """Return the scores by their name in the results file, and print each of them when it is there."""
    from csekit.evaluation.clustering import cluster_titles
    from csekit.evaluation.geometry_scores import measure_geometry

    pairs, clustered = data
    found: dict[str, Any] = {"geometry": measure_geometry(encoder, pairs, options)}
    typer.echo(table(*found["geometry"].table()) + "\n")
    if clusters is not None:
        titles, labels = clustered
        found["clustering"] = cluster_titles(encoder, titles, labels, clusters)
        typer.echo(table(*found["clustering"].table()) + "\n")
    return found


def _settings(
    data: tuple[Any, Any], options: "GeometryOptions", clusters: "ClusteringOptions | None"
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options and the checksum of the data of each kind of scores."""
    from csekit.evaluation.clustering import LABELS, LabelledTexts

    pairs, clustered = data
    settings, checksums = {"geometry": options}, {"geometry": pairs.checksum()}
    if clusters is None:
        return settings, checksums
    titles, labels = clustered
    texts = LabelledTexts("StackOverflow", tuple(titles), labels, LABELS)
    return {**settings, "clustering": clusters}, {**checksums, "clustering": texts.checksum()}


def _described(
    path: str,
    encoder: "TextEncoder",
    options: dict[str, Any],
    checksums: dict[str, str],
    target: tuple[Path | None, str | None, bool],
) -> dict[str, Any]:
    """Describe the run for its results file. Raises FileExistsError: the file holds another run."""
    from csekit.evaluation.results import check_replaceable

    output, _, overwrite = target
    if output is None:
        return {}
    settings = {name: repr(each) for name, each in options.items()}
    run = {**identity(path, encoder), "settings": settings, "data": checksums}
    if not overwrite:
        check_replaceable(output, run)
    return run


def _write(
    output: Path, run: dict[str, Any], found: dict[str, Any], names: tuple[str, str], seconds: float, overwrite: bool
) -> None:
    from csekit.encoding import environment
    from csekit.evaluation import write_results

    contents = {name: scores.to_dict() for name, scores in found.items()}
    results = {"run": run, "name": names[0], "title": names[1], **contents, "environment": environment()}
    results["seconds"] = {"total": seconds}
    similarities = found["geometry"].similarities() if "geometry" in found else None
    write_results(output, results, similarities, overwrite=overwrite)
