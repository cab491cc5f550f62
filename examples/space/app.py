"""Two encoders side by side: nearest neighbours of a typed sentence, and which of some sentences each finds alike.

    python examples/space/app.py runs/simcse runs/informin --corpus sentences.txt

On a Space the two encoders and the corpus come from its variables ENCODER_A, ENCODER_B and CORPUS (see README.md).
"""

import argparse
import os
from dataclasses import dataclass

import gradio as gr
import numpy as np
from matplotlib.figure import Figure

from csekit.cli.common import model_labels
from csekit.encoding import TextEncoder, load_encoder
from csekit.encoding.encoder import embed
from csekit.evaluation import read_sentences, search_blocks

MAX_CORPUS = 20_000
#: Bounds of what a visitor may send; the page's own limits do not hold for its API.
MAX_CHARACTERS = 1000
MAX_NEIGHBORS = 20
EXAMPLES = "A man is playing a guitar.\nSomeone makes music.\nA dog runs across the field.\nThe animal is running."


@dataclass(frozen=True)
class Side:
    """An encoder with the corpus under it, (N, H), rows of length one."""

    name: str
    encoder: TextEncoder
    corpus_NH: np.ndarray

    def unit(self, texts: list[str]) -> np.ndarray:
        return unit(embed(self.encoder, texts))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def neighbors(sides: list[Side], corpus: list[str], query: str, k: float) -> list[list[list[str]]]:
    """For each encoder the k nearest sentences with their cosines; a sentence that equals the query is left out."""
    query = bounded(query)
    if not query:
        raise gr.Error("Type a sentence first.")
    k = min(max(int(k), 1), MAX_NEIGHBORS)
    tables = []
    for side in sides:
        scores, index = search_blocks(side.unit([query]), [side.corpus_NH], min(k + 1, len(corpus)))
        rows = [
            [f"{score:.3f}", corpus[i]] for score, i in zip(scores[0], index[0], strict=True) if corpus[i] != query
        ]
        tables.append(rows[:k])
    return tables


def bounded(text: str) -> str:
    """Return a typed text without blanks around it. Raises gr.Error for one that is too long."""
    if len(text) > MAX_CHARACTERS:
        raise gr.Error(f"Give at most {MAX_CHARACTERS} characters; got {len(text)}.")
    return text.strip()


def heat_map(sides: list[Side], text: str) -> Figure:
    """Cosines of the typed sentences with each other, a panel for each encoder."""
    sentences = [line.strip() for line in bounded(text).splitlines() if line.strip()]
    if not 2 <= len(sentences) <= 12:
        raise gr.Error(f"Give 2 to 12 sentences, one a line; got {len(sentences)}.")
    figure = Figure(figsize=(5.2 * len(sides) + 2, 0.45 * len(sentences) + 3), layout="constrained")
    for i, (side, axes) in enumerate(zip(sides, figure.subplots(1, len(sides)), strict=True)):
        rows = side.unit(sentences)
        cosine = rows @ rows.T
        image = axes.imshow(cosine, vmin=min(0.0, float(cosine.min())), vmax=1, cmap="viridis")
        for y, x in np.ndindex(*cosine.shape):
            axes.text(
                x, y, f"{cosine[y, x]:.2f}", ha="center", va="center", color="black" if cosine[y, x] > 0.6 else "w"
            )
        axes.set_title(side.name)
        axes.set_xticks(range(len(sentences)), [str(j + 1) for j in range(len(sentences))])
        labels = [f"{j + 1}  {s if len(s) < 34 else s[:32] + '…'}" for j, s in enumerate(sentences)]
        axes.set_yticks(range(len(sentences)), labels if i == 0 else [str(j + 1) for j in range(len(sentences))])
        figure.colorbar(image, ax=axes, shrink=0.7, label="cosine")
    return figure


def build(sides: list[Side], corpus: list[str]) -> gr.Blocks:
    with gr.Blocks(title="Two encoders", analytics_enabled=False) as page:
        gr.Markdown(
            f"# {sides[0].name} and {sides[1].name}\nSentence encoders side by side, on {len(corpus):,} sentences."
        )
        with gr.Tab("Nearest neighbours"):
            query = gr.Textbox(
                label="Sentence", value=corpus[0][:MAX_CHARACTERS], max_length=MAX_CHARACTERS, elem_id="query"
            )
            k = gr.Slider(1, MAX_NEIGHBORS, value=5, step=1, label="Neighbours")
            search = gr.Button("Search", variant="primary", elem_id="search")
            with gr.Row():
                widths = ["15%", "85%"]
                tables = [gr.Dataframe(headers=["cosine", s.name], wrap=True, column_widths=widths) for s in sides]
            gr.on([search.click, query.submit], lambda q, n: neighbors(sides, corpus, q, n), [query, k], tables)
        with gr.Tab("Similarity", elem_id="similarity"):
            text = gr.Textbox(
                label="Sentences, one a line",
                lines=6,
                value=EXAMPLES,
                max_length=MAX_CHARACTERS,
                elem_id="sentences",
            )
            compare = gr.Button("Compare", variant="primary", elem_id="compare")
            plot = gr.Plot(show_label=False, elem_id="heat_map")
            compare.click(lambda t: heat_map(sides, t), text, plot)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", nargs="?", default=os.environ.get("ENCODER_A"), help="a run, a SentenceTransformer")
    parser.add_argument("b", nargs="?", default=os.environ.get("ENCODER_B"), help="another one")
    parser.add_argument("--corpus", default=os.environ.get("CORPUS", "corpus.txt"), help="a sentence a line")
    parser.add_argument("--pooling", help="of plain encoders: cls, mean, …")
    parser.add_argument("--port", type=int, default=None)
    args = parser.parse_args()
    if not (args.a and args.b):
        parser.error("name two encoders, or set ENCODER_A and ENCODER_B")
    corpus = read_sentences(args.corpus, least=2)[:MAX_CORPUS]
    sides = []
    for path, name in zip((args.a, args.b), model_labels([args.a, args.b]), strict=True):
        encoder = load_encoder(path, pooling=args.pooling)
        sides.append(Side(name, encoder, unit(embed(encoder, corpus))))
    build(sides, corpus).launch(server_port=args.port)


if __name__ == "__main__":
    main()
